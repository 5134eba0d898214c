//! A node as the cluster sees it: a process that holds its namespaces, and a cable to the segment.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    cgroups::Cgroups,
    machine::Machine,
    segment,
    settings::{Network, Settings, node_name},
};
use crate::process;

/// A disk that is quickly filled.
const DISK_MEGABYTES: u32 = 32;

/// A running node.
pub(crate) struct Node {
    pub(crate) number: u8,
    description: PathBuf,
    logs: PathBuf,
    cgroups: Cgroups,
    settings: Settings,
    process: Option<Running>,
}

struct Running {
    /// `unshare`, whose child is the node's first process.
    launcher: Child,
    init: u32,
}

/// Places of the cluster that nodes use.
pub(super) struct Places<'a> {
    pub(super) directory: &'a Path,
    pub(super) root: &'a Path,
    pub(super) programs: &'a Path,
    pub(super) images: &'a [PathBuf],
    /// The node whose address daemon has a disk that is quickly filled.
    pub(super) small_disk: Option<u8>,
}

impl Node {
    /// Describes a node; `start` makes it run.
    pub(super) fn new(
        number: u8,
        settings: &Settings,
        places: &Places<'_>,
        cgroups: &Cgroups,
    ) -> anyhow::Result<Self> {
        let name = node_name(number);
        let logs = places.directory.join("logs");
        let directory = places.directory.join("nodes").join(&name);
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let machine = Machine {
            addresses: settings.families.addresses(number),
            dns: settings.families.dns_address(),
            cgroup: cgroups.root_of(&name),
            unified_cgroups: cgroups.are_unified(),
            root: places.root.to_owned(),
            logs: logs.clone(),
            programs: places.programs.to_owned(),
            images: places.images.to_vec(),
            credentials: places.directory.join("credentials"),
            // The second one takes them from Weft's image, as the manifests offer.
            with_plugins: number != 2 || settings.network == Network::KubeProxy,
            disk: (places.small_disk == Some(number)).then_some(DISK_MEGABYTES),
            directory: directory.clone(),
            name,
        };
        let description = directory.join("machine.json");
        fs::write(&description, serde_json::to_string(&machine)?)
            .with_context(|| format!("cannot write {}", description.display()))?;
        Ok(Self {
            number,
            description,
            logs,
            cgroups: cgroups.clone(),
            settings: settings.clone(),
            process: None,
        })
    }

    pub(crate) fn name(&self) -> String {
        node_name(self.number)
    }

    /// Boots it and connects it to the segment.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.cgroups.create(&self.name())?;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.logs.join(format!("{}.log", self.name())))
            .context("cannot open the node's log")?;
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--mount", "--pid", "--uts", "--ipc", "--fork"])
            .arg("--kill-child=KILL")
            .arg(std::env::current_exe().context("cannot find this program")?)
            .args(["cluster-machine"])
            .arg(&self.description)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut launcher = command.spawn().context("cannot start unshare")?;
        let init = only_child(launcher.id())?;
        segment::connect(self.number, init, self.settings.families)?;
        let mut input = launcher.stdin.take().context("a node without input")?;
        writeln!(input, "connected").context("cannot tell the node that it is connected")?;
        self.process = Some(Running { launcher, init });
        Ok(())
    }

    /// Ends everything in it at once, as a power failure does, and boots it again.
    pub(crate) fn reboot(&mut self) -> anyhow::Result<()> {
        let mut running = self.process.take().context("the node is not running")?;
        let init =
            Pid::from_raw(i32::try_from(running.init)?).context("a node without a process")?;
        kill_process(init, Signal::KILL).context("cannot end the node")?;
        running
            .launcher
            .wait()
            .context("cannot wait for the node's end")?;
        segment::disconnect(self.number);
        self.cgroups.remove_node(&self.name())?;
        self.start()
    }

    /// Kills the processes whose command line matches; fails if there is none.
    pub(crate) fn kill(&self, pattern: &str) -> anyhow::Result<()> {
        let mut command = self.inside("pkill")?;
        process::output(command.args(["--signal", "KILL", "--full", pattern])).map(drop)
    }

    /// A command in the node's network, with the files and programs of the machine.
    pub(crate) fn in_network(&self, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        self.enter(&["--net"], program.as_ref())
    }

    /// A command in all namespaces of the node, with its files and programs.
    pub(crate) fn inside(&self, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        let all = [
            "--net", "--mount", "--pid", "--uts", "--ipc", "--root", "--wd",
        ];
        self.enter(&all, program.as_ref())
    }

    fn enter(&self, namespaces: &[&str], program: &Path) -> anyhow::Result<Command> {
        let running = self.process.as_ref().context("the node is not running")?;
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &running.init.to_string()])
            .args(namespaces)
            .arg("--")
            .arg(program);
        Ok(command)
    }

    /// Waits until containerd answers, and gives it the images.
    pub(super) fn import(&self, images: &[PathBuf]) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let ctr = "/opt/weft-cluster/bin/ctr";
        while !process::succeeds(self.inside(ctr)?.arg("version")) {
            if Instant::now() > deadline {
                bail!(
                    "containerd of {} does not answer; see {}",
                    self.name(),
                    self.logs.display()
                );
            }
            thread::sleep(Duration::from_millis(100));
        }
        for image in images {
            let name = image.file_name().context("an image without a name")?;
            let archive = Path::new("/opt/weft-cluster/images").join(name);
            let mut command = self.inside(ctr)?;
            command.args(["--namespace", "k8s.io", "images", "import", "--local"]);
            process::output(command.arg(archive))?;
        }
        Ok(())
    }
}

/// The process that `unshare` forked.
fn only_child(launcher: u32) -> anyhow::Result<u32> {
    let path = format!("/proc/{launcher}/task/{launcher}/children");
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let children = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        if let Some(child) = children.split_whitespace().next() {
            return Ok(child.parse()?);
        }
        if Instant::now() > deadline {
            bail!("unshare started no process");
        }
        thread::sleep(Duration::from_millis(5));
    }
}
