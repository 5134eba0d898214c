//! Control groups of a cluster: one subtree for each node, below one that is removed with the cluster.
//!
//! A kubelet expects its root to exist in every hierarchy. Under version 1 each controller is a
//! hierarchy of its own, and a cpuset begins empty and takes no process; under version 2 controllers
//! have to be enabled from the root down.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

const MOUNT: &str = "/sys/fs/cgroup";
/// Processes that were killed leave their groups within moments.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);

/// The subtree of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    name: String,
    hierarchies: Vec<PathBuf>,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Version {
    One,
    Two,
}

impl Cgroups {
    /// The subtree of this name, whether or not it exists.
    pub(crate) fn named(name: &str) -> anyhow::Result<Self> {
        let mount = Path::new(MOUNT);
        if mount.join("cgroup.controllers").is_file() {
            return Ok(Self {
                name: name.to_owned(),
                hierarchies: vec![mount.to_owned()],
                version: Version::Two,
            });
        }
        let mut hierarchies: Vec<PathBuf> = fs::read_dir(mount)
            .with_context(|| format!("cannot read {MOUNT}: control groups are needed"))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.join("cgroup.procs").is_file() && !path.is_symlink())
            .collect();
        hierarchies.sort();
        if !hierarchies.iter().any(|path| path.ends_with("memory")) {
            bail!("{MOUNT} has no controller memory, which a kubelet needs");
        }
        Ok(Self {
            name: name.to_owned(),
            hierarchies,
            version: Version::One,
        })
    }

    /// The path of a node's subtree, as a kubelet takes it.
    pub(crate) fn root_of(&self, node: &str) -> String {
        format!("/{}/{node}", self.name)
    }

    /// True if the kernel has control groups of version 2 only.
    pub(crate) fn are_unified(&self) -> bool {
        self.version == Version::Two
    }

    /// Makes a node's subtree in every hierarchy.
    pub(crate) fn create(&self, node: &str) -> anyhow::Result<()> {
        for hierarchy in &self.hierarchies {
            let mut parent = hierarchy.clone();
            for part in [&*self.name, node] {
                if self.version == Version::Two {
                    enable_controllers(&parent)?;
                }
                let child = parent.join(part);
                fs::create_dir_all(&child)
                    .with_context(|| format!("cannot create {}", child.display()))?;
                if hierarchy.ends_with("cpuset") {
                    inherit_cpuset(&parent, &child)?;
                }
                parent = child;
            }
            if self.version == Version::Two {
                enable_controllers(&parent)?;
            }
        }
        Ok(())
    }

    /// Removes the subtree, once its processes have ended.
    pub(crate) fn remove(&self) -> anyhow::Result<()> {
        self.remove_below(Path::new(&self.name))
    }

    /// Removes the subtree of a node.
    pub(crate) fn remove_node(&self, node: &str) -> anyhow::Result<()> {
        self.remove_below(&Path::new(&self.name).join(node))
    }

    fn remove_below(&self, path: &Path) -> anyhow::Result<()> {
        let deadline = Instant::now() + REMOVAL_LIMIT;
        for hierarchy in &self.hierarchies {
            let root = hierarchy.join(path);
            while let Err(error) = remove_tree(&root) {
                if Instant::now() > deadline {
                    return Err(error).with_context(|| format!("cannot remove {}", root.display()));
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}

/// Files of a control group cannot be removed, so directories go from the leaves up.
fn remove_tree(directory: &Path) -> std::io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn inherit_cpuset(parent: &Path, child: &Path) -> anyhow::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let value = fs::read_to_string(parent.join(file))
            .with_context(|| format!("cannot read {file} of {}", parent.display()))?;
        fs::write(child.join(file), value)
            .with_context(|| format!("cannot set {file} of {}", child.display()))?;
    }
    Ok(())
}

fn enable_controllers(group: &Path) -> anyhow::Result<()> {
    let available = fs::read_to_string(group.join("cgroup.controllers"))
        .with_context(|| format!("cannot read the controllers of {}", group.display()))?;
    for controller in available.split_whitespace() {
        let control = group.join("cgroup.subtree_control");
        fs::write(&control, format!("+{controller}"))
            .with_context(|| format!("cannot enable {controller} in {}", control.display()))?;
    }
    Ok(())
}
