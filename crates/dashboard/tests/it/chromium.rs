//! A headless Chromium, driven over its debugging pipe.

use std::{env, path::PathBuf, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

/// A loaded machine may take a while to start a browser.
const PATIENCE: Duration = Duration::from_secs(60);

/// Limit of parallel browsers: each is many processes, too many for a small machine.
static PLACES: Semaphore = Semaphore::const_new(2);

/// One browser with one page in it.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
    complaints: Vec<String>,
    _profile: tempfile::TempDir,
    _place: SemaphorePermit<'static>,
}

/// Path of Chromium; `None` skips the test, unless `WEFT_MUST_RUN_PEERS` is set.
pub(crate) fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        .map(|directory| directory.join("chromium"))
        .find(|path| path.is_file());
    if found.is_none() {
        weft_testkit::not_run("chromium is not installed: install Debian's package of that name");
    }
    found
}

impl Browser {
    /// Opens a page in a window of this size.
    pub(crate) async fn open(chromium: PathBuf, url: &str, (width, height): (u32, u32)) -> Self {
        let place = PLACES.acquire().await.unwrap();
        let profile = tempfile::tempdir().unwrap();
        // Chromium's debugging pipe uses descriptors 3 and 4.
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#,
            ])
            .arg(chromium)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .args([
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
            ])
            .args(["--remote-debugging-pipe", "--force-color-profile=srgb"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        let mut browser = Self {
            child,
            to,
            from,
            session: None,
            sent: 0,
            complaints: Vec::new(),
            _profile: profile,
            _place: place,
        };
        browser.attach().await;
        browser.resize(width, height).await;
        browser.call("Page.navigate", json!({"url": url})).await;
        browser
    }

    async fn attach(&mut self) {
        let made = self
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let target = json!({"targetId": made["targetId"], "flatten": true});
        let attached = self.call("Target.attachToTarget", target).await;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), json!({})).await;
        }
    }

    /// Calls a method of the debugging protocol.
    pub(crate) async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let number = self.sent;
        let mut message = json!({"id": number, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).await.unwrap();
        loop {
            let message = timeout(PATIENCE, self.read()).await.expect(method);
            if message["id"] == number {
                assert_eq!(message["error"], Value::Null, "{method}");
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    async fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).await.unwrap();
        assert_eq!(bytes.pop(), Some(0), "chromium ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Collects the browser's complaints: scripts that fail, policies that are violated.
    fn note(&mut self, message: &Value) {
        let bad = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => message["params"]["entry"]["level"] == "error",
            Some("Runtime.consoleAPICalled") => message["params"]["type"] == "error",
            _ => false,
        };
        if bad {
            self.complaints.push(message["params"].to_string());
        }
    }

    /// Complaints so far.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// The value of an expression in the page; a promise is waited for.
    pub(crate) async fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true,
        });
        let answer = self.call("Runtime.evaluate", parameters).await;
        assert_eq!(answer["exceptionDetails"], Value::Null, "{expression}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) async fn wait(&mut self, condition: &str) {
        let promise = format!(
            "new Promise((done) => {{ const look = () => \
             ({condition}) ? done(true) : setTimeout(look, 20); look(); }})"
        );
        self.value(&promise).await;
    }

    /// Waits until the first state is drawn.
    pub(crate) async fn drawn(&mut self) {
        // The page may not be loaded yet, and with it the promise of `wait`.
        while self
            .value("document.body?.dataset.drawn ?? null")
            .await
            .is_null()
        {
            tokio::task::yield_now().await;
        }
    }

    /// Sets the size of the window.
    pub(crate) async fn resize(&mut self, width: u32, height: u32) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Closes the browser.
    pub(crate) async fn close(mut self) {
        self.session = None;
        self.call("Browser.close", json!({})).await;
        timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap();
    }
}
