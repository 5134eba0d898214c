//! `make cluster`: a real Kubernetes cluster on this machine, with Weft as its network.
//!
//! Nodes are sets of namespaces with a Debian root, containerd and a kubelet. Everything runs below
//! one process in a pid namespace: when that ends, however it ends, the kernel ends the rest, and
//! with it network and mounts. Control groups and files are removed by a process that waits for it.

use std::{
    env,
    fs::{self, File},
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
};

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    debian, images, peers,
    process::{self, Progress},
    setup, workspace,
};

mod addons;
mod addresses;
mod alerts;
mod cgroups;
mod comparison;
mod control_plane;
mod credentials;
mod e2e;
mod faults;
mod former;
mod forward;
mod inside;
mod kubectl;
mod machine;
mod node;
mod outcome;
mod pods;
mod preflight;
mod replacement;
mod segment;
mod settings;
mod traffic;
mod workload;

use cgroups::Cgroups;
use inside::{Job, Order};
use settings::Settings;

/// A Kubernetes cluster on this machine, with Weft as its network; flags go into ARGS of `make cluster`
#[derive(Parser)]
#[command(name = "make cluster", no_binary_name = true)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// Run `weft check` once and exit
    #[arg(long)]
    once: bool,
    /// Cargo profile with which Weft is built: playground builds quickly, dist is what releases use
    #[arg(long, default_value = "playground")]
    profile: String,
}

/// `cargo xtask cluster`, with the flags in `ARGS`.
pub(crate) fn run() -> anyhow::Result<()> {
    let words = env::var("ARGS").unwrap_or_default();
    let arguments = match Arguments::try_parse_from(words.split_whitespace()) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let job = if arguments.once { Job::Once } else { Job::Stay };
    match prepare(&arguments.profile)?.start(&arguments.settings, job)? {
        Finish::Stopped => eprintln!("stopped"),
        Finish::Done => {}
    }
    Ok(())
}

/// The way in which a cluster ended without an error.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Finish {
    Done,
    /// By Ctrl-C or SIGTERM.
    Stopped,
}

/// Programs, root file system and images of clusters: built once, used by several.
pub(crate) struct Parts {
    root: PathBuf,
    images: Vec<PathBuf>,
    weft: PathBuf,
    programs: PathBuf,
}

/// Checks this machine, then builds what is missing.
pub(crate) fn prepare(profile: &str) -> anyhow::Result<Parts> {
    preflight::check()?;
    workspace::create_private(&directory())?;
    // Better now than after the builds.
    drop(lock(&directory())?);
    setup::cluster()?;
    let (root, mut archives) = prepare_surroundings()?;
    let mut progress = Progress::of(2);
    let mut weft = None;
    progress.step("weft", || {
        weft = Some(images::Programs::build(profile)?);
        Ok(())
    })?;
    let weft = weft.context("the build ended without a result")?;
    progress.step("images of Weft", || {
        archives.extend(images::weft(&weft, images::TAG, &images::directory())?);
        Ok(())
    })?;
    Ok(Parts {
        root,
        images: archives,
        weft: weft.weft,
        programs: peers::directory()?.join("bin"),
    })
}

/// Builds what several checkouts share: the programs, root file systems and images around Weft.
fn prepare_surroundings() -> anyhow::Result<(PathBuf, Vec<PathBuf>)> {
    let cache = images::cache()?;
    let _lock = lock_cache(&cache)?;
    peers::build_cluster()?;
    let mut progress = Progress::of(2);
    progress.step("root file systems", || {
        for root in [&debian::NODE, &debian::WEFT_NODE, &debian::WEFT_CONTROLLER] {
            root.ensure(&cache)?;
        }
        Ok(())
    })?;
    let mut archives = Vec::new();
    progress.step("images of Kubernetes", || {
        archives = images::surroundings()?;
        Ok(())
    })?;
    Ok((debian::NODE.ensure(&cache)?, archives))
}

impl Parts {
    /// Builds a cluster, does the job and removes everything.
    pub(crate) fn start(&self, settings: &Settings, job: Job) -> anyhow::Result<Finish> {
        let directory = directory();
        workspace::create_private(&directory)?;
        let lock = lock(&directory)?;
        remove_data(&directory)?;
        for name in ["credentials", "logs", "nodes"] {
            fs::create_dir_all(directory.join(name))
                .context("cannot create the cluster's files")?;
        }
        let ports = [
            forward::outside(&directory.join("api.sock"))?,
            forward::outside(&directory.join("page.sock"))?,
        ];
        let order = Order {
            settings: settings.clone(),
            root: self.root.clone(),
            programs: self.programs.clone(),
            images: match &job {
                Job::Update { former, .. } => [&self.images[..], &former.images].concat(),
                _ => self.images.clone(),
            },
            weft: self.weft.clone(),
            cgroup: format!("weft-cluster-{}", std::process::id()),
            ports,
            directory: directory.clone(),
            job,
        };
        let file = directory.join("order.json");
        fs::write(&file, serde_json::to_string(&order)?).context("cannot write the order")?;
        let program = copy_this_program(&directory)?;
        let mut janitor = start_janitor(&program, &order.cgroup, &directory, lock)?;
        let status = run_inside(&program, &file);
        // Its input ends with this: it removes what is left.
        drop(janitor.stdin.take());
        let cleaned = janitor.wait().context("cannot wait for the removal")?;
        ensure!(cleaned.success(), "cannot remove everything of the cluster");
        match status? {
            Ended::Stopped => Ok(Finish::Stopped),
            Ended::ByItself(status) if status.success() => Ok(Finish::Done),
            Ended::ByItself(status) => bail!("the cluster failed: {status}"),
        }
    }
}

/// Copies the running program: a build may replace its file at any time, also one of this run.
fn copy_this_program(directory: &Path) -> anyhow::Result<PathBuf> {
    let path = directory.join("xtask");
    // Removed first, because the janitor of the last cluster may still run it.
    if path.exists() {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    fs::copy("/proc/self/exe", &path)
        .with_context(|| format!("cannot copy this program to {}", path.display()))?;
    Ok(path)
}

/// The files of a cluster of this checkout.
pub(crate) fn directory() -> PathBuf {
    workspace::target().join("cluster")
}

enum Ended {
    /// By Ctrl-C or SIGTERM.
    Stopped,
    ByItself(ExitStatus),
}

/// Runs the cluster in namespaces to its end.
fn run_inside(program: &Path, order: &Path) -> anyhow::Result<Ended> {
    // Should this process be killed, the kernel kills `unshare`, and that its child.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "unshare"])
        .args(["--net", "--mount", "--pid", "--uts", "--ipc", "--fork"])
        .args(["--mount-proc", "--kill-child=KILL", "--"])
        .arg(program)
        .arg("cluster-inside")
        .arg(order)
        .stdin(Stdio::null())
        // Ctrl-C reaches this process only, which ends the cluster as a whole.
        .process_group(0);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let mut child = command.spawn().context("cannot start setpriv")?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let handle = signals.handle();
    let waiting = thread::spawn(move || {
        let received = signals.forever().next().is_some();
        if let (true, Some(pid)) = (received, pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
        received
    });
    let status = child.wait().context("cannot wait for the cluster")?;
    handle.close();
    let stopped = waiting.join().unwrap_or(false);
    Ok(if stopped {
        Ended::Stopped
    } else {
        Ended::ByItself(status)
    })
}

/// One build at a time in a cache that several checkouts share; another one is waited for.
fn lock_cache(cache: &Path) -> anyhow::Result<File> {
    let path = cache.join("lock");
    let file = open_lock(&path)?;
    if file.try_lock().is_err() {
        eprintln!("waiting for another build in {}", cache.display());
        file.lock()
            .with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

fn open_lock(path: &Path) -> anyhow::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}

/// One cluster at a time in a checkout; one that is being removed is waited for.
fn lock(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join("lock");
    let file = open_lock(&path)?;
    // Removing the files of several nodes takes minutes on some disks.
    for attempt in 0..3000 {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) if is_ending(directory) => {
                if attempt == 0 {
                    eprintln!("waiting for the end of the last cluster");
                }
                thread::sleep(std::time::Duration::from_millis(100));
            }
            Err(fs::TryLockError::WouldBlock) => break,
            Err(fs::TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
    bail!("another cluster of this checkout is running; end it first, or wait for its end")
}

/// A janitor marks that it has begun.
fn is_ending(directory: &Path) -> bool {
    directory.join("ending").exists()
}

/// Starts the process that removes control groups and files when this one and the cluster have ended.
fn start_janitor(
    program: &Path,
    cgroup: &str,
    directory: &Path,
    lock: File,
) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    command
        .args(["cluster-janitor", cgroup])
        .arg(directory)
        .stdin(Stdio::piped())
        // It holds the lock for as long as something is left.
        .stdout(lock)
        // Signals of the terminal do not reach it.
        .process_group(0);
    command.spawn().context("cannot start the removal")
}

/// Waits for the end of the process that started it, then removes what a cluster leaves.
pub(crate) fn janitor(cgroup: &str, directory: &Path) -> anyhow::Result<()> {
    let mut rest = Vec::new();
    std::io::stdin()
        .read_to_end(&mut rest)
        .context("cannot wait for the cluster")?;
    let mark = directory.join("ending");
    fs::write(&mark, "").context("cannot mark the end")?;
    let removed = Cgroups::named(cgroup).and_then(|cgroups| cgroups.remove());
    let result = removed.and_then(|()| remove_data(directory));
    fs::remove_file(&mark).context("cannot remove the mark")?;
    result
}

/// Everything but the logs.
fn remove_data(directory: &Path) -> anyhow::Result<()> {
    for name in ["credentials", "deploy", "etcd", "nodes"] {
        let path = directory.join(name);
        if path.exists() {
            fs::remove_dir_all(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    for name in [
        "api.sock",
        "page.sock",
        "kubeconfig",
        "order.json",
        "coredns.yaml",
    ] {
        workspace::remove_result(&directory.join(name))?;
    }
    Ok(())
}

/// `make clean`: what a janitor could not remove because it was killed as well.
pub(crate) fn clean() -> anyhow::Result<()> {
    let directory = directory();
    if !directory.is_dir() {
        return Ok(());
    }
    let _lock = lock(&directory)?;
    let order = directory.join("order.json");
    if let Ok(text) = fs::read_to_string(&order) {
        let order: Order = serde_json::from_str(&text)?;
        Cgroups::named(&order.cgroup)?.remove()?;
    }
    remove_data(&directory)
}

/// Hidden tasks by which this program starts itself in namespaces.
pub(crate) fn become_part(arguments: &[&str]) -> Option<anyhow::Result<()>> {
    match arguments {
        ["cluster-inside", order] => Some(inside::run(Path::new(order))),
        ["cluster-machine", description] => Some(machine::run(Path::new(description))),
        ["cluster-traffic", target] => Some(traffic::run(target)),
        ["cluster-janitor", cgroup, directory] => Some(janitor(cgroup, Path::new(directory))),
        _ => None,
    }
}

/// A tool of the machine that a step needs and that apt does not install.
fn require(program: &str) -> anyhow::Result<()> {
    ensure!(
        process::find(program).is_some(),
        "cannot start a cluster: the program {program} is missing"
    );
    Ok(())
}
