//! The programs we compare ourselves with, built from their published Go modules.
//!
//! They land outside of the tree, so that a fresh clone finds them again; nothing in `make test`
//! needs them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::process::{self, Progress};

mod cluster;
mod module;
mod moto;
mod plugins;
mod written;

pub(crate) use moto::Moto;

pub(crate) use module::KUBERNETES;
use module::{ETCD, NEWEST};

/// The programs, and the Go packages they are built from.
const PROGRAMS: [(&str, &str); 4] = [
    ("etcd", "./etcd"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
];

const GO_NEEDED: (u32, u32) = (1, 26);

/// The module completes itself, and whatever repository surrounds the cache is none of its business.
const FLAGS: &str = "-mod=mod -buildvcs=false";

/// The directory of the peers: `WEFT_PEERS_DIR` or the user's cache directory.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let given = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    given("WEFT_PEERS_DIR")
        .or_else(|| given("XDG_CACHE_HOME").map(|cache| cache.join("weft/peers")))
        .or_else(|| given("HOME").map(|home| home.join(".cache/weft/peers")))
        .context("neither WEFT_PEERS_DIR, XDG_CACHE_HOME nor HOME is set")
}

/// The directory of the peers of the pinned version.
pub(crate) fn directory() -> anyhow::Result<PathBuf> {
    Ok(cache()?.join(KUBERNETES))
}

/// The path of a built peer.
pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = directory()?.join("bin").join(name);
    if !path.is_file() {
        bail!("{name} is not built yet; `make peers` does that");
    }
    Ok(path)
}

/// Builds whatever is not there yet.
pub(crate) fn build() -> anyhow::Result<()> {
    let directory = directory()?;
    let (programs, written) = (is_complete(&directory), written::are_built(&directory));
    let (plugins, newest) = (plugins::are_built(&directory), has_newest(&directory));
    if !programs {
        build_programs(&directory)?;
    }
    if !written {
        written::build(&directory)?;
    }
    if !plugins {
        plugins::build(&directory)?;
    }
    if !newest {
        build_newest(&directory)?;
    }
    if programs && written && plugins && newest {
        let bin = directory.join("bin");
        eprintln!("peers are up to date in {}", bin.display());
    }
    Ok(())
}

/// Builds what a whole cluster needs and is not there yet.
pub(crate) fn build_cluster() -> anyhow::Result<()> {
    cluster::build(&directory()?)
}

/// The sources of Kubernetes, as Go keeps them.
pub(crate) fn kubernetes_sources() -> anyhow::Result<PathBuf> {
    Go::prepare(&directory()?.join("module"))?.directory_of("k8s.io/kubernetes")
}

/// True if the programs of a whole cluster are there.
pub(crate) fn has_cluster() -> bool {
    directory().is_ok_and(|directory| cluster::is_built(&directory))
}

fn build_programs(directory: &Path) -> anyhow::Result<()> {
    let go = Go::prepare(&directory.join("module"))?;
    let mut progress = Progress::of(PROGRAMS.len());
    eprintln!("building Kubernetes {KUBERNETES} and etcd {ETCD}; the first time takes minutes");
    for (name, package) in PROGRAMS {
        progress.step(name, || {
            go.build(package, &directory.join("bin").join(name))
        })?;
    }
    fs::write(stamp(directory), recipe()).context("write the stamp")?;
    progress.finish(&format!(
        "peers are in {}, built",
        directory.join("bin").display()
    ));
    Ok(())
}

/// The newest kube-proxy, in a module of its own: one module has one Kubernetes.
fn build_newest(directory: &Path) -> anyhow::Result<()> {
    let module = directory.join("module-newest");
    fs::create_dir_all(&module).with_context(|| format!("create {}", module.display()))?;
    fs::write(module.join("go.mod"), module::BARE).context("write go.mod")?;
    let mut go = Go {
        module,
        link_flags: String::new(),
    };
    go.check_version()?;
    let published = go.download(&format!("k8s.io/kubernetes@{NEWEST}"))?;
    let go_mod = module::newest_go_mod(&published.go_mod);
    fs::write(go.module.join("go.mod"), go_mod).context("write go.mod")?;
    go.link_flags = module::link_flags(NEWEST, &published.time);
    let mut progress = Progress::of(1);
    progress.step(&format!("kube-proxy {NEWEST}"), || {
        go.build("k8s.io/kubernetes/cmd/kube-proxy", &newest(directory))
    })?;
    fs::write(newest_stamp(directory), NEWEST).context("write the stamp")
}

fn has_newest(directory: &Path) -> bool {
    fs::read_to_string(newest_stamp(directory)).is_ok_and(|made| made == NEWEST)
        && newest(directory).is_file()
}

fn newest(directory: &Path) -> PathBuf {
    directory.join("bin/kube-proxy-newest")
}

fn newest_stamp(directory: &Path) -> PathBuf {
    directory.join("newest-recipe")
}

fn is_complete(directory: &Path) -> bool {
    fs::read_to_string(stamp(directory)).is_ok_and(|made| made == recipe())
        && PROGRAMS
            .iter()
            .all(|(name, _)| directory.join("bin").join(name).is_file())
}

fn stamp(directory: &Path) -> PathBuf {
    directory.join("recipe")
}

/// Changes when the result would: the pins and the flags.
fn recipe() -> String {
    format!(
        "{KUBERNETES} {ETCD}\n{}\n",
        module::link_flags(KUBERNETES, "(build date)")
    )
}

/// A Go toolchain at work in the generated module.
struct Go {
    module: PathBuf,
    link_flags: String,
}

impl Go {
    /// Writes the module that pins everything.
    fn prepare(module: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(module.join("etcd"))
            .with_context(|| format!("create {}", module.display()))?;
        let write = |name: &str, text: &str| {
            fs::write(module.join(name), text).with_context(|| format!("write {name}"))
        };
        write("go.mod", module::BARE)?;
        let mut go = Self {
            module: module.to_owned(),
            link_flags: String::new(),
        };
        go.check_version()?;
        let published = go.download(&format!("k8s.io/kubernetes@{KUBERNETES}"))?;
        write("go.mod", &module::go_mod(&published.go_mod))?;
        write("etcd/main.go", module::ETCD_MAIN)?;
        go.link_flags = module::link_flags(KUBERNETES, &published.time);
        Ok(go)
    }

    fn check_version(&self) -> anyhow::Result<()> {
        let (major, minor) = GO_NEEDED;
        let wanted = format!(
            "the peers are built with Go {major}.{minor} or newer, which your distribution or the \
             Go project provides; put its `go` on the PATH"
        );
        if process::find("go").is_none() {
            bail!("Go is missing: {wanted}");
        }
        let found = process::output(self.command().args(["env", "GOVERSION"]))?;
        match module::parse_go_version(found.trim()) {
            Some(version) if version >= GO_NEEDED => Ok(()),
            _ => bail!("{} is too old: {wanted}", found.trim()),
        }
    }

    fn download(&self, module: &str) -> anyhow::Result<module::Published> {
        eprintln!("fetching {module}");
        let answer = process::output(self.command().args(["mod", "download", "-json", module]))?;
        module::Published::read(&answer).with_context(|| format!("what go says about {module}"))
    }

    fn build(&self, package: &str, program: &Path) -> anyhow::Result<()> {
        let mut command = self.command();
        command
            .args(["build", "-trimpath", "-ldflags", &self.link_flags, "-o"])
            .arg(program);
        process::run(command.arg(package))
    }

    /// Builds the test program of a package.
    fn build_tests(&self, package: &str, program: &Path) -> anyhow::Result<()> {
        let mut command = self.command();
        command
            // The code of others is not ours to vet, which takes as long as the build.
            .args(["test", "-c", "-vet=off", "-trimpath"])
            .args(["-ldflags", &self.link_flags])
            .arg("-o")
            .arg(program);
        process::run(command.arg(package))
    }

    /// The directory of a module's sources.
    fn directory_of(&self, module: &str) -> anyhow::Result<PathBuf> {
        let path = process::output(
            self.command()
                .args(["list", "-m", "-f", "{{.Dir}}", module]),
        )?;
        Ok(PathBuf::from(path.trim()))
    }

    fn command(&self) -> Command {
        let mut command = Command::new("go");
        // Static programs run in any container and namespace; the versions are pinned by the
        // generated module, whose check sums Go verifies and records on the way.
        command
            .current_dir(&self.module)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", FLAGS);
        // A surrounding workspace file would overrule the pins.
        command.env("GOWORK", "off");
        command
    }
}
