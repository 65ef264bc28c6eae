"""Whether one target and its heads are fit to be measured here: checked in order, told line by line, refused below a floor."""
