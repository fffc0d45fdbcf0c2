//! A headless Chromium on a machine, driven by the `DevTools` protocol through two pipes: JSON
//! messages, each with a zero byte at its end.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Machine, Process, patient};

/// Where Debian installs it.
pub const CHROMIUM: &str = "/usr/bin/chromium";

/// Starts Chromium with its messages on descriptors 3 and 4. Arguments: the two pipes, the profile.
const LAUNCH: &str = "exec /usr/bin/chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage \
     --disable-background-networking --no-first-run --hide-scrollbars --remote-debugging-pipe --user-data-dir=\"$3\" \
     about:blank 3<\"$1\" 4>\"$2\"";

/// A browser with one page. Dropping it kills it.
pub struct Browser {
    process: Process,
    _profile: TempDir,
    requests: File,
    messages: Receiver<Value>,
    /// Events that have arrived: method and parameters.
    pub events: Vec<Value>,
    session: Option<String>,
    last: u64,
}

impl Browser {
    /// Starts Chromium with an empty page.
    pub fn start(machine: &Machine) -> Result<Self> {
        let profile = tempfile::tempdir()?;
        let [requests, answers] = ["requests", "answers"].map(|name| profile.path().join(name));
        for pipe in [&requests, &answers] {
            mkfifo(pipe, Mode::from_bits_truncate(0o600))?;
        }
        // Opened for both directions, a pipe has no other end to wait for.
        let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
        let (written, read) = (open(&requests)?, open(&answers)?);
        let paths = [&requests, &answers, &profile.path().join("profile")]
            .map(|path| path.display().to_string());
        let words = ["sh", "-c", LAUNCH, "sh", &paths[0], &paths[1], &paths[2]];
        let mut browser = Self {
            process: Process::start(machine, &words)?,
            _profile: profile,
            requests: written,
            messages: messages(read),
            events: Vec::new(),
            session: None,
            last: 0,
        };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &attach)?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(browser)
    }

    /// Executes a method, and returns its result.
    pub fn call(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.requests.write_all(format!("{message}\0").as_bytes())?;
        loop {
            let message = self.receive(method)?;
            if message["id"] != self.last {
                self.events.push(message);
            } else if message["error"].is_null() {
                return Ok(message["result"].clone());
            } else {
                bail!("{method}: {}", message["error"]);
            }
        }
    }

    fn receive(&self, method: &str) -> Result<Value> {
        let wait = patient(Duration::from_mins(1));
        let received = self.messages.recv_timeout(wait);
        received.with_context(|| format!("{method}: no answer; {}", self.process.output()))
    }

    /// Evaluates an expression, and awaits its value if it is a promise.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let parameters = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true,
        });
        let result = self.call("Runtime.evaluate", &parameters)?;
        let exception = &result["exceptionDetails"];
        ensure!(exception.is_null(), "{expression}: {exception}");
        Ok(result["result"]["value"].clone())
    }

    /// Loads a page.
    pub fn navigate(&mut self, url: &str) -> Result<()> {
        let loaded = self.call("Page.navigate", &json!({ "url": url }))?;
        ensure!(loaded["errorText"].is_null(), "{url}: {loaded}");
        Ok(())
    }

    /// Sets the size of the page, and the colour scheme that the reader prefers.
    pub fn emulate(&mut self, width: u32, scheme: &str) -> Result<()> {
        let size = json!({
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        self.call("Emulation.setDeviceMetricsOverride", &size)?;
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [feature] }),
        )
        .map(drop)
    }

    /// Returns a picture of the whole page as PNG.
    pub fn screenshot(&mut self) -> Result<Vec<u8>> {
        let parameters = json!({ "format": "png", "captureBeyondViewport": true });
        let taken = self.call("Page.captureScreenshot", &parameters)?;
        let text = taken["data"].as_str().context("no picture")?;
        Ok(BASE64_STANDARD.decode(text)?)
    }
}

/// Reads messages on a thread, which ends with the test.
fn messages(pipe: File) -> Receiver<Value> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for message in BufReader::new(pipe).split(0).map_while(Result::ok) {
            let Ok(message) = serde_json::from_slice(&message) else {
                continue;
            };
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}
