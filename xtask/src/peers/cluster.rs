//! Programs of a whole cluster: the rest of Kubernetes, containerd, CoreDNS and the e2e tests.
//!
//! Each program has a stamp of its own, so a build that was interrupted goes on where it stopped.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;

use super::{Go, build_programs, is_complete, module, plugins};
use crate::process::{self, Progress};

/// A Go module that the programs are built in.
#[derive(Clone, Copy, PartialEq)]
enum Module {
    Kubernetes,
    Containerd,
    CoreDns,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Program,
    /// A compiled test package.
    Tests,
}

struct Program {
    name: &'static str,
    package: &'static str,
    module: Module,
    kind: Kind,
}

const fn program(module: Module, name: &'static str, package: &'static str) -> Program {
    Program {
        name,
        package,
        module,
        kind: Kind::Program,
    }
}

const PROGRAMS: [Program; 10] = [
    program(
        Module::Containerd,
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd",
    ),
    program(
        Module::Containerd,
        "ctr",
        "github.com/containerd/containerd/v2/cmd/ctr",
    ),
    program(
        Module::Containerd,
        "containerd-shim-runc-v2",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    program(
        Module::Kubernetes,
        "kubelet",
        "k8s.io/kubernetes/cmd/kubelet",
    ),
    program(
        Module::Kubernetes,
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
    program(
        Module::Kubernetes,
        "kube-scheduler",
        "k8s.io/kubernetes/cmd/kube-scheduler",
    ),
    program(
        Module::Kubernetes,
        "agnhost",
        "k8s.io/kubernetes/test/images/agnhost",
    ),
    program(
        Module::Kubernetes,
        "regression-issue-74839",
        "k8s.io/kubernetes/test/images/regression-issue-74839",
    ),
    program(Module::CoreDns, "coredns", "."),
    Program {
        name: "e2e.test",
        package: "k8s.io/kubernetes/test/e2e",
        module: Module::Kubernetes,
        kind: Kind::Tests,
    },
];

/// The container that holds a pod's namespaces; the version is that of its image.
const PAUSE: &str = "pause";

/// Builds what is missing; a build that is complete takes no time.
pub(super) fn build(directory: &Path) -> anyhow::Result<()> {
    if !is_complete(directory) {
        build_programs(directory)?;
    }
    if !plugins::are_built(directory) {
        plugins::build(directory)?;
    }
    let missing: Vec<&Program> = PROGRAMS
        .iter()
        .filter(|program| !program.is_built(directory))
        .collect();
    let pause = !is_stamped(directory, PAUSE, &pause_recipe());
    if missing.is_empty() && !pause {
        return Ok(());
    }
    eprintln!(
        "building the cluster's programs from Go modules; the first time takes a quarter of an hour or more"
    );
    let mut progress = Progress::of(missing.len() + usize::from(pause));
    for program in missing {
        progress.step(program.name, || program.build(directory))?;
    }
    if pause {
        progress.step(PAUSE, || build_pause(directory))?;
    }
    progress.finish("the cluster's programs are built");
    Ok(())
}

/// True if nothing has to be built.
pub(super) fn is_built(directory: &Path) -> bool {
    is_complete(directory)
        && plugins::are_built(directory)
        && PROGRAMS.iter().all(|program| program.is_built(directory))
        && is_stamped(directory, PAUSE, &pause_recipe())
}

impl Module {
    fn prepare(self, directory: &Path) -> anyhow::Result<Go> {
        let (name, go_mod, main) = match self {
            Self::Kubernetes => return Go::prepare(&directory.join("module")),
            Self::Containerd => ("containerd", module::containerd_go_mod(), None),
            Self::CoreDns => (
                "coredns",
                module::coredns_go_mod(),
                Some(include_str!("coredns.go")),
            ),
        };
        let home = directory.join(name);
        fs::create_dir_all(&home).with_context(|| format!("create {}", home.display()))?;
        fs::write(home.join("go.mod"), go_mod).context("write go.mod")?;
        if let Some(main) = main {
            fs::write(home.join("main.go"), main).context("write main.go")?;
        }
        let version = format!(
            "-s -w -X github.com/containerd/containerd/v2/version.Version={}",
            module::CONTAINERD
        );
        let go = Go {
            module: home,
            link_flags: version,
        };
        go.check_version()?;
        Ok(go)
    }

    /// Changes when the result would.
    fn recipe(self) -> String {
        match self {
            Self::Kubernetes => super::recipe(),
            Self::Containerd => module::containerd_go_mod(),
            Self::CoreDns => module::coredns_go_mod() + include_str!("coredns.go"),
        }
    }
}

impl Program {
    fn build(&self, directory: &Path) -> anyhow::Result<()> {
        let go = self.module.prepare(directory)?;
        let target = directory.join("bin").join(self.name);
        match self.kind {
            Kind::Program => go.build(self.package, &target)?,
            Kind::Tests => go.build_tests(self.package, &target)?,
        }
        write_stamp(directory, self.name, &self.module.recipe())
    }

    fn is_built(&self, directory: &Path) -> bool {
        is_stamped(directory, self.name, &self.module.recipe())
    }
}

/// One C file of the Kubernetes module.
fn build_pause(directory: &Path) -> anyhow::Result<()> {
    let go = Module::Kubernetes.prepare(directory)?;
    let source = go.directory_of("k8s.io/kubernetes")?;
    let mut compiler = Command::new("cc");
    compiler
        .args(["-Os", "-static", "-DVERSION=v3.10.2", "-o"])
        .arg(directory.join("bin").join(PAUSE))
        .arg(source.join("build/pause/linux/pause.c"));
    process::run(&mut compiler)?;
    write_stamp(directory, PAUSE, &pause_recipe())
}

fn pause_recipe() -> String {
    Module::Kubernetes.recipe() + PAUSE
}

fn is_stamped(directory: &Path, name: &str, recipe: &str) -> bool {
    directory.join("bin").join(name).is_file()
        && fs::read_to_string(stamp(directory, name)).is_ok_and(|made| made == recipe)
}

fn write_stamp(directory: &Path, name: &str, recipe: &str) -> anyhow::Result<()> {
    let stamp = stamp(directory, name);
    fs::write(&stamp, recipe).with_context(|| format!("cannot write {}", stamp.display()))
}

fn stamp(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}-recipe"))
}
