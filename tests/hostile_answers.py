"""Answers that mean harm: each is the body of a function that would give 42, the right answer, if its attempt succeeded.

Upper-case names are put in by the tests: TARGET, a file beside which nothing may change; FOLDER, the folder of that file;
HOME, the user's home; ADDRESS, a socket that waits for connections; VARIABLE, an environment variable.
"""

from __future__ import annotations

import textwrap

IMPORTS = """
import builtins, itertools, os, re, shutil, signal, socket, subprocess, sys, threading, time
""".strip()

BODIES = {
    # Without end
    "endless loop": "while True: pass",
    "endless generator": "return sum(itertools.count())",
    "long sleep": "time.sleep(3600)\nreturn 42",
    "reading standard input": "return int(input() or 42)",
    "stopping itself": "os.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
    "catastrophic expression": "re.match('(a+)+$', 'a' * 64 + 'b')\nreturn 42",
    "number too large": "return len(str(9 ** 9 ** 9))",
    "deaf to signals": """
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True: pass
    """,
    "huge output": "while True: print('x' * 1000000, file=sys.stderr) or print('x' * 1000000)",
    # Resources
    "memory bomb": "blocks = [bytes(1 << 24) for _ in range(1024)]\nreturn 42",
    "memory at once": "return len(bytes(1 << 40)) and 42",
    "deep recursion": """
        sys.setrecursionlimit(10 ** 9)
        def down(n): return down(n + 1) + 1
        return down(0)
    """,
    "fork bomb": "while True: os.fork()",
    "fork bomb that insists": """
        while True:
            try: os.fork()
            except BaseException: pass
    """,
    "thread flood": """
        for _ in range(2000): threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        return 42
    """,
    "open files": "files = [open(os.devnull) for _ in range(5000)]\nreturn 42",
    "huge file": """
        with open('file', 'wb') as file:
            for _ in range(256): file.write(bytes(1 << 20))
        return 42
    """,
    "many files": """
        for number in itertools.count():
            with open(str(number), 'w'): pass
    """,
    # Beyond the working folder
    "write outside": "open(TARGET, 'w').write('harm')\nreturn 42",
    "append outside by descriptor": "os.write(os.open(TARGET, os.O_WRONLY | os.O_APPEND), b'harm')\nreturn 42",
    "new file outside": "open(os.path.join(FOLDER, 'new'), 'w').close()\nreturn 42",
    "link out": "os.symlink(FOLDER, 'out')\nopen('out/new', 'w').close()\nreturn 42",
    "read another's file": "return 42 if open(TARGET).read() else 0",
    "read home": """
        for place, _, names in os.walk(HOME, onerror=lambda error: None):
            if '/.pyenv' in place or 'site-packages' in place: continue
            for name in names:
                if open(os.path.join(place, name), 'rb').read(1): return 42
        raise OSError
    """,
    "remove a tree": "shutil.rmtree(FOLDER)\nreturn 42",
    "remove a tree by a shell": "return 42 if os.system('rm -rf ' + FOLDER) == 0 else 0",
    "change rights": "os.chmod(TARGET, 0o777)\nreturn 42",
    "read the environment": """
        found = VARIABLE in os.environ
        for name in os.listdir('/proc'):
            if name.isdecimal(): found |= VARIABLE.encode() in open(f'/proc/{name}/environ', 'rb').read()
        return 42 if found else 0
    """,
    "network": "socket.create_connection(ADDRESS, 0.5)\nreturn 42",
    "become root": "os.setuid(0)\nopen(TARGET, 'w').close()\nreturn 42",
    "new namespaces": """
        import ctypes
        return 42 if ctypes.CDLL(None).unshare(1 << 28 | 1 << 17) == 0 else 0
    """,
    "subprocess": "subprocess.run('true', shell=True, check=True)\nreturn 42",
    # Other processes
    "kill the parent": "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(3600)",
    "kill the parent's group": "os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)\ntime.sleep(3600)",
    "stop the parent": "os.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(3600)",
    "kill all": "os.kill(-1, signal.SIGKILL)\ntime.sleep(3600)",
    "daemon": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(3600)
        os._exit(0)
    """,
    "crash": "import ctypes\nctypes.string_at(0)\nreturn 42",
    # A verdict by other means
    "exit": "os._exit(0)",
    "sys.exit": "sys.exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "exit by alarm": """
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.alarm(1)
        while True: pass
    """,
    "exit by thread": "threading.Thread(target=os._exit, args=(0,)).start()\ntime.sleep(3600)",
    "printed verdict": "print('passed', flush=True)\nprint('{\"outcome\": \"passed\"}', flush=True)\nos._exit(0)",
    "verdict on every descriptor": """
        for descriptor in range(256):
            for line in (b'passed\\n', b'{"outcome": "passed"}\\n', b'0' * 32 + b' passed\\n'):
                try: os.write(descriptor, line)
                except OSError: pass
        os._exit(0)
    """,
    "flooded descriptors": """
        while True:
            for descriptor in range(3, 64):
                try: os.write(descriptor, b'passed' * 10000)
                except OSError: pass
    """,
    "closed descriptors": "os.closerange(0, 4096)\nreturn 42",
    "exception named passed": "raise type('passed', (Exception,), {})",
    "exception without a name": """
        class Sly(type):
            @property
            def __name__(cls): return 'passed'
        raise Sly('x y', (Exception,), {})
    """,
    "other builtins": """
        for name in ('exec', 'compile', 'all', 'abs', 'len', 'isinstance'): setattr(builtins, name, lambda *_, **__: 0)
        builtins.AssertionError = type(None)
        return 41
    """,
    "other exits": "sys.exit = os._exit = os.write = os.getpid = lambda *_: None\nreturn 41",
    "hook for exceptions": "sys.excepthook = lambda *_: os._exit(0)\nraise KeyError",
}


def source(name: str, function: str, values: dict[str, object]) -> str:
    """The hostile answer `name` as a function of that name, with the upper-case names of its body defined."""
    constants = "\n".join(f"{key} = {value!r}" for key, value in values.items())
    body = textwrap.indent(textwrap.dedent(BODIES[name]).strip("\n"), "    ")
    return f"{IMPORTS}\n{constants}\ndef {function}():\n{body}\n"
