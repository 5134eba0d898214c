//! The first process of a node: mounts its root, then keeps containerd and kubelet running.
//!
//! It runs in network, mount, pid, UTS and IPC namespaces of its own. When it is killed, the kernel
//! ends everything in the node at once, as a power failure does.

use std::{
    ffi::{CStr, CString},
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, UnmountFlags},
    process::{Pid, WaitOptions},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::images::PAUSE;

/// Pause before a program that ended is started again.
const RESTART: Duration = Duration::from_secs(1);
/// Directory of the machine's programs and images inside a node.
const SHARED: &str = "/opt/weft-cluster";

/// All that a node has to know.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) addresses: Vec<std::net::IpAddr>,
    pub(super) dns: std::net::IpAddr,
    pub(super) cgroup: String,
    pub(super) unified_cgroups: bool,
    /// The Debian root that all nodes share.
    pub(super) root: PathBuf,
    /// The node's own files: what it writes outlives a reboot.
    pub(super) directory: PathBuf,
    pub(super) logs: PathBuf,
    pub(super) programs: PathBuf,
    pub(super) images: Vec<PathBuf>,
    pub(super) credentials: PathBuf,
    /// True if the node has the CNI project's plugins; else they come from the image of Weft.
    pub(super) with_plugins: bool,
    /// Limit of the file system that holds `/var/lib`, in MiB; none means that of the machine.
    pub(super) disk: Option<u32>,
}

/// Becomes the node; returns only with an error.
pub(super) fn run(description: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(description)
        .with_context(|| format!("cannot read {}", description.display()))?;
    let machine: Machine = serde_json::from_str(&text)?;
    // The network is connected from outside; a line says that it is.
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    ensure!(line.trim() == "connected", "the network was not connected");
    rustix::system::sethostname(machine.name.as_bytes()).context("cannot set the host name")?;
    let root = machine.mount()?;
    machine.write_files(&root)?;
    let [containerd_log, kubelet_log] = ["containerd", "kubelet"].map(|name| machine.log(name));
    let (containerd_log, kubelet_log) = (containerd_log?, kubelet_log?);
    enter(&root)?;
    let programs = [
        (Machine::containerd(), containerd_log),
        (machine.kubelet(), kubelet_log),
    ];
    keep_running(programs)
}

impl Machine {
    fn mount(&self) -> anyhow::Result<PathBuf> {
        let root = self.directory.join("root");
        let [upper, work] = ["upper", "work"].map(|name| self.directory.join(name));
        for directory in [&root, &upper, &work] {
            create(directory)?;
        }
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            self.root.display(),
            upper.display(),
            work.display()
        );
        mount("overlay", &root, "overlay", MountFlags::empty(), &layers)?;
        let at = |path: &str| root.join(path.trim_start_matches('/'));
        for path in ["proc", "sys", "dev", "run", "tmp", "old", "lib/modules"] {
            create(&at(path))?;
        }
        mount("proc", &at("proc"), "proc", MountFlags::empty(), "")?;
        bind(Path::new("/dev"), &at("dev"))?;
        // That of this network namespace; a fresh one has no control groups.
        mount("sysfs", &at("sys"), "sysfs", MountFlags::empty(), "")?;
        bind(Path::new("/sys/fs/cgroup"), &at("sys/fs/cgroup"))?;
        mount(
            "tmpfs",
            &at("run"),
            "tmpfs",
            MountFlags::empty(),
            "mode=755",
        )?;
        mount(
            "tmpfs",
            &at("tmp"),
            "tmpfs",
            MountFlags::empty(),
            "mode=1777",
        )?;
        // Not on the overlay: containerd's own overlays need a real file system, and kubelet measures
        // that of its volumes.
        for name in ["containerd", "kubelet"] {
            let (own, inside) = (self.directory.join(name), at(&format!("var/lib/{name}")));
            create(&own)?;
            create(&inside)?;
            bind(&own, &inside)?;
        }
        if let Some(megabytes) = self.disk {
            let state = at("var/lib/weft");
            create(&state)?;
            let size = format!("size={megabytes}m,mode=755");
            mount("tmpfs", &state, "tmpfs", MountFlags::empty(), &size)?;
        }
        let programs = at(&format!("{SHARED}/bin"));
        create(&programs)?;
        bind(&self.programs, &programs)?;
        let images = at(&format!("{SHARED}/images"));
        create(&images)?;
        for image in &self.images {
            let name = image.file_name().context("an image without a name")?;
            let target = images.join(name);
            File::create(&target).with_context(|| format!("cannot create {}", target.display()))?;
            bind(image, &target)?;
        }
        // Kubeconfigs name files by their paths outside.
        let credentials = at(&self.credentials.to_string_lossy());
        create(&credentials)?;
        bind(&self.credentials, &credentials)?;
        Self::hide_settings_of_the_machine(&root)?;
        Ok(root)
    }

    /// kubelet sets these for the whole machine unless they are as it wants them: it finds files
    /// that say so. Each start of a node is a boot for it.
    fn hide_settings_of_the_machine(root: &Path) -> anyhow::Result<()> {
        let boot =
            fs::read_to_string("/proc/sys/kernel/random/uuid").context("cannot draw a boot ID")?;
        let directory = root.join("run/sysctls");
        create(&directory)?;
        for (name, value) in [
            ("vm/overcommit_memory", "1"),
            ("vm/panic_on_oom", "0"),
            ("kernel/panic", "10"),
            ("kernel/panic_on_oops", "1"),
            ("kernel/keys/root_maxkeys", "1000000"),
            ("kernel/keys/root_maxbytes", "25000000"),
            ("kernel/random/boot_id", boot.trim()),
        ] {
            let file = directory.join(name.replace('/', "."));
            write(&file, &format!("{value}\n"))?;
            bind(&file, &root.join("proc/sys").join(name))?;
        }
        Ok(())
    }

    fn write_files(&self, root: &Path) -> anyhow::Result<()> {
        let at = |path: &str| root.join(path);
        for path in [
            "etc/cni/net.d",
            "etc/kubernetes",
            "etc/containerd",
            "opt/cni/bin",
            "var/log/pods",
            "var/log/containers",
            "usr/local/bin",
        ] {
            create(&at(path))?;
        }
        let identity = self.directory.join("machine-id");
        if !identity.is_file() {
            let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?.replace('-', "");
            write(&identity, &uuid)?;
        }
        write(&at("etc/machine-id"), &fs::read_to_string(&identity)?)?;
        write(&at("etc/hostname"), &format!("{}\n", self.name))?;
        let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        for address in &self.addresses {
            hosts.extend([address.to_string().as_str(), " ", &self.name, "\n"]);
        }
        write(&at("etc/hosts"), &hosts)?;
        // There is no name server beyond the cluster's; what is asked there is refused at once.
        write(&at("etc/resolv.conf"), "nameserver 127.0.0.1\n")?;
        write(&at("etc/containerd/config.toml"), &containerd_config())?;
        write(&at("etc/kubernetes/kubelet.json"), &self.kubelet_config())?;
        if self.with_plugins {
            let plugins = self.programs.join("cni");
            for plugin in fs::read_dir(&plugins)
                .with_context(|| format!("cannot read {}", plugins.display()))?
            {
                let plugin = plugin?;
                fs::copy(plugin.path(), at("opt/cni/bin").join(plugin.file_name()))
                    .context("cannot copy a CNI plugin")?;
            }
        }
        let shim = at("usr/local/bin/containerd-shim-runc-v2");
        if !shim.is_symlink() {
            symlink(format!("{SHARED}/bin/containerd-shim-runc-v2"), shim)
                .context("cannot link the shim")?;
        }
        Ok(())
    }

    fn kubelet_config(&self) -> String {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": self.credentials.join("ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup,
            "failCgroupV1": false,
            "failSwapOn": false,
            "clusterDNS": [self.dns.to_string()],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "resolvConf": "/etc/resolv.conf",
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "enforceNodeAllocatable": [],
            "nodeStatusUpdateFrequency": "5s",
            "maxPods": 120,
            "registerNode": true,
        })
        .to_string()
    }

    fn log(&self, program: &str) -> anyhow::Result<File> {
        let path = self.logs.join(format!("{}-{program}.log", self.name));
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))
    }

    fn containerd() -> Command {
        let mut command = Command::new(format!("{SHARED}/bin/containerd"));
        command.args(["--config", "/etc/containerd/config.toml"]);
        command
    }

    fn kubelet(&self) -> Command {
        let kubeconfig = self.credentials.join(format!("{}.kubeconfig", self.name));
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let mut command = Command::new(format!("{SHARED}/bin/kubelet"));
        command
            .args(["--config=/etc/kubernetes/kubelet.json", "--v=2"])
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--hostname-override={}", self.name))
            .arg(format!("--node-ip={}", addresses.join(",")));
        command
    }
}

fn containerd_config() -> String {
    format!(
        "version = 3
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{PAUSE}'
[plugins.'io.containerd.cri.v1.runtime']
  # A machine may withhold the capability that lowers oom_score_adj.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/opt/cni/bin']
    conf_dir = '/etc/cni/net.d'
"
    )
}

/// Makes this directory the root of the process and forgets the machine's.
fn enter(root: &Path) -> anyhow::Result<()> {
    rustix::process::chdir(root).context("cannot enter the root")?;
    rustix::process::pivot_root(".", "old").context("cannot change the root")?;
    rustix::process::chdir("/").context("cannot enter the root")?;
    rustix::mount::unmount("/old", UnmountFlags::DETACH).context("cannot forget the old root")?;
    // kubelet's volumes have to reach containers that run already.
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", shared).context("cannot share the node's mounts")
}

/// Starts the programs again whenever they end, and collects orphans, as an init process does.
fn keep_running(programs: [(Command, File); 2]) -> anyhow::Result<()> {
    let mut running: Vec<(Command, Option<Pid>)> = Vec::new();
    for (mut command, log) in programs {
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            );
        let pid = start(&mut command)?;
        running.push((command, Some(pid)));
    }
    loop {
        let ended = match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, _))) => pid,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error).context("cannot wait for processes"),
        };
        for (command, pid) in &mut running {
            if *pid == Some(ended) {
                thread::sleep(RESTART);
                *pid = Some(start(command)?);
            }
        }
    }
}

fn start(command: &mut Command) -> anyhow::Result<Pid> {
    let child = command
        .spawn()
        .context("cannot start a program of the node")?;
    Pid::from_raw(i32::try_from(child.id())?).context("a process without an ID")
}

fn create(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn mount(
    source: &str,
    target: &Path,
    kind: &str,
    flags: MountFlags,
    data: &str,
) -> anyhow::Result<()> {
    let data = CString::new(data)?;
    let data: Option<&CStr> = (!data.is_empty()).then_some(&data);
    rustix::mount::mount(source, target, kind, flags, data)
        .with_context(|| format!("cannot mount {kind} at {}", target.display()))
}

fn bind(source: &Path, target: &Path) -> anyhow::Result<()> {
    rustix::mount::mount_bind_recursive(source, target)
        .with_context(|| format!("cannot bind {} to {}", source.display(), target.display()))
}
