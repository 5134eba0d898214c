//! moto, an independent emulator of AWS, installed from its published package.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::process;

const VERSION: &str = "5.2.5";

/// Python starts slowly, and on a busy machine very slowly.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A running server, ended with this.
pub(crate) struct Moto {
    child: Child,
    address: SocketAddr,
}

impl Moto {
    /// Installs it if it is not there yet, and starts it on a free port of loopback.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let directory = install()?;
        let log = directory.join("server.log");
        let output = File::create(&log).context("create moto's log file")?;
        let address = free_address()?;
        let child = Command::new(server(&directory))
            .args(["-H", "127.0.0.1", "-p", &address.port().to_string()])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("start moto_server")?;
        let mut moto = Self { child, address };
        moto.wait().with_context(|| {
            let text = fs::read_to_string(&log).unwrap_or_default();
            format!("moto_server does not answer; its log says:\n{text}")
        })?;
        Ok(moto)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended: {status}");
            }
            if begun.elapsed() > START_LIMIT {
                bail!("it took longer than {} s", START_LIMIT.as_secs());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It may have ended already, which is all that is wanted.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Its directory among the peers, with the Python packages that it needs.
fn install() -> anyhow::Result<PathBuf> {
    let peers = super::directory()?;
    let all = peers
        .parent()
        .context("the directory of peers has no parent")?;
    let directory = all.join(format!("moto-{VERSION}"));
    let stamp = directory.join("installed");
    if stamp.is_file() && server(&directory).is_file() {
        return Ok(directory);
    }
    if process::find("python3").is_none() {
        bail!("moto needs python3 with its venv module (Debian: python3-venv)");
    }
    eprintln!("installing moto {VERSION} into {}", directory.display());
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv", "--clear"]).arg(&directory);
    process::run(&mut environment)?;
    let mut pip = Command::new(directory.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    process::run(pip.arg(format!("moto[server]=={VERSION}")))?;
    fs::write(&stamp, VERSION).context("write the stamp")?;
    Ok(directory)
}

fn server(directory: &Path) -> PathBuf {
    directory.join("bin/moto_server")
}

/// A port that was free a moment ago: moto does not say which one it took by itself.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr()?)
}
