"""A headless Chromium spoken to over a pipe (--remote-debugging-pipe): JSON messages that end in a zero byte, written
to its descriptor 3 and read from its descriptor 4. Python's standard library is all it needs."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


class Chromium:
    def __init__(self, binary, width=1400, height=1000):
        self.profile = tempfile.mkdtemp(prefix="limpid-view-")
        # Ends of pipes out of the way of 3 and 4, where the browser looks for its own.
        ends = [*os.pipe(), *os.pipe()]
        to_browser, self.to, self.back, from_browser = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
        for end in ends:
            os.close(end)

        def place():
            os.dup2(to_browser, 3)
            os.dup2(from_browser, 4)

        command = [
            binary,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            f"--window-size={width},{height}",
            f"--user-data-dir={self.profile}",
            "about:blank",
        ]
        self.log = open(os.path.join(self.profile, "log"), "w")
        self.process = subprocess.Popen(
            command, pass_fds=(3, 4), preexec_fn=place, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.number = 0
        self.events = []
        target = self.call("Target.createTarget", {"url": "about:blank"}, session=None)
        self.session = None
        attached = self.call("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True}, session=None)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        try:
            self.call("Browser.close", session=None)
        except (OSError, RuntimeError):
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _receive(self, timeout):
        end = time.monotonic() + timeout
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.back], [], [], max(0, end - time.monotonic()))
            if not ready:
                return None
            data = os.read(self.back, 1 << 20)
            if not data:
                raise RuntimeError("Chromium has gone away; see its log above")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, params=None, session="page", timeout=120):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params or {}}
        if session == "page":
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(timeout)
            if answer is None:
                raise RuntimeError(f"no answer to {method} in {timeout} s")
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error'].get('message')}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def evaluate(self, expression):
        """The value of a JavaScript expression; a promise is awaited."""
        result = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(
                f"{expression[:80]}: {details.get('exception', {}).get('description', details.get('text'))}"
            )
        return result["result"].get("value")

    def open(self, path):
        self.events.clear()
        self.call("Page.navigate", {"url": "file://" + os.path.abspath(path)})

    def wait_until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.evaluate(expression):
                return
            time.sleep(0.02)
        raise RuntimeError(f"not true after {seconds} s: {expression}")

    def settle(self):
        """Until timers of the page have run and a frame has been drawn."""
        self.evaluate(
            "new Promise((done) => setTimeout(() =>"
            " requestAnimationFrame(() => requestAnimationFrame(() => done(1))), 200))"
        )

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def move(self, x, y):
        self.mouse("mouseMoved", x, y)

    def click(self, x, y):
        self.move(x, y)
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", buttons=0, clickCount=1)

    def drag(self, x0, y0, x1, y1, modifiers=0):
        self.mouse("mouseMoved", x0, y0, modifiers=modifiers)
        self.mouse("mousePressed", x0, y0, button="left", buttons=1, clickCount=1, modifiers=modifiers)
        for k in range(1, 6):
            self.mouse(
                "mouseMoved",
                x0 + (x1 - x0) * k / 5,
                y0 + (y1 - y0) * k / 5,
                button="left",
                buttons=1,
                modifiers=modifiers,
            )
        self.mouse("mouseReleased", x1, y1, button="left", buttons=0, clickCount=1, modifiers=modifiers)

    def wheel(self, x, y, dy, modifiers=0):
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=dy, modifiers=modifiers)

    def key(self, key, modifiers=0):
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Tab": 9}
        code = codes.get(key, ord(key.upper()[0]))
        text = {"text": key} if len(key) == 1 and modifiers == 0 else {}
        self.call(
            "Input.dispatchKeyEvent",
            {"type": "keyDown", "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers, **text},
        )
        self.call(
            "Input.dispatchKeyEvent",
            {"type": "keyUp", "key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers},
        )

    def screenshot(self, path, full=False):
        data = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": full})["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def pdf(self, path):
        data = self.call("Page.printToPDF", {"printBackground": True})["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def colour_scheme(self, scheme):
        self.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
