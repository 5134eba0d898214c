//! Images of Weft and of the programs around it in a cluster, as OCI archives.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;

use crate::{
    debian,
    oci::Image,
    peers,
    process::{self, cargo},
    setup, suites, workspace,
};

/// The name under which containerd starts the container that holds a pod's namespaces.
pub(crate) const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
/// The DNS server of the cluster.
pub(crate) const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.14.1";
/// The names of Weft's images in deploy/examples/cluster.
pub(crate) const WEFT_NODE: &str = "registry.example.com/weft-node";
pub(crate) const WEFT_CONTROLLER: &str = "registry.example.com/weft-controller";
/// Their tag there.
pub(crate) const TAG: &str = "0.1.0";
/// An image with a shell and network programs; Kubernetes' e2e tests run it.
pub(crate) const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

/// `cargo xtask images`: the images of Weft, built as releases are.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::cluster()?;
    let programs = Programs::build("dist")?;
    for archive in weft(&programs, TAG, &directory())? {
        println!("{}", archive.display());
    }
    Ok(())
}

/// Directory of the root file systems and of the images that do not change with Weft.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let cache = peers::directory()?.join("cluster");
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    Ok(cache)
}

/// Directory of the images of Weft.
pub(crate) fn directory() -> PathBuf {
    workspace::target().join("images")
}

/// A source tree of Weft and the directory of what is built from it.
pub(crate) struct Sources {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
}

/// The programs of Weft that images have.
pub(crate) struct Programs {
    pub(crate) weft: PathBuf,
    weft_cni: PathBuf,
}

impl Programs {
    /// Builds them with a cargo profile.
    pub(crate) fn build(profile: &str) -> anyhow::Result<Self> {
        let sources = Sources {
            root: workspace::root().to_owned(),
            target: workspace::target(),
        };
        if profile == "dev" {
            // The tests need the same program: nothing is built twice.
            suites::build()?;
            return Self::build_cni(&sources, profile);
        }
        Self::build_from(&sources, profile)
    }

    /// Builds them from other sources than this checkout's.
    pub(crate) fn build_from(sources: &Sources, profile: &str) -> anyhow::Result<Self> {
        let mut weft = sources.cargo();
        weft.args(["build", "--locked", "--profile", profile]);
        process::run(weft.args(["--package", "weft", "--bin", "weft"]))?;
        Self::build_cni(sources, profile)
    }

    /// Builds `weft-cni` next to a `weft` that is there. It is copied to nodes whose C library may be
    /// older, so it brings its own.
    fn build_cni(sources: &Sources, profile: &str) -> anyhow::Result<Self> {
        let host = host_target()?;
        let mut weft_cni = sources.cargo();
        // Naming a target keeps the flag away from procedural macros.
        weft_cni
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
            .args(["build", "--locked", "--profile", profile, "--target", &host])
            .args(["--package", "weft-cni", "--bin", "weft-cni"]);
        process::run(&mut weft_cni)?;
        // The directory of the profile `dev` has another name.
        let directory = if profile == "dev" { "debug" } else { profile };
        let target = &sources.target;
        Ok(Self {
            weft: target.join(directory).join("weft"),
            weft_cni: target.join(host).join(directory).join("weft-cni"),
        })
    }
}

impl Sources {
    fn cargo(&self) -> Command {
        let mut command = cargo();
        command
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target);
        command
    }
}

fn host_target() -> anyhow::Result<String> {
    let version = process::output(Command::new("rustc").arg("-vV"))?;
    version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc does not name its host")
}

/// Writes the archives of weft-node and weft-controller into a directory; returns their paths.
pub(crate) fn weft(programs: &Programs, tag: &str, output: &Path) -> anyhow::Result<[PathBuf; 2]> {
    let cache = cache()?;
    fs::create_dir_all(output).with_context(|| format!("cannot create {}", output.display()))?;
    let node_root = debian::WEFT_NODE.ensure(&cache)?;
    let controller_root = debian::WEFT_CONTROLLER.ensure(&cache)?;
    let node = Layer::new(output, "weft-node")?;
    node.stripped(&programs.weft, "usr/local/bin/weft")?;
    node.stripped(&programs.weft_cni, "usr/local/bin/weft-cni")?;
    let controller = Layer::new(output, "weft-controller")?;
    controller.stripped(&programs.weft, "usr/local/bin/weft")?;
    // Nodes have the archives of several versions in one directory.
    let archives =
        ["weft-node", "weft-controller"].map(|name| output.join(format!("{name}-{tag}.tar")));
    let command = &["weft", "--help"];
    for (archive, name, user, layers) in [
        (&archives[0], WEFT_NODE, None, [&*node_root, &node.0]),
        (
            &archives[1],
            WEFT_CONTROLLER,
            Some("65532"),
            [&*controller_root, &controller.0],
        ),
    ] {
        let name = format!("{name}:{tag}");
        let image = Image {
            names: &[&name],
            entrypoint: &[],
            command,
            user,
            layers: &layers,
        };
        let digest = image.write(archive)?;
        eprintln!("{name} {digest}");
    }
    Ok(archives)
}

/// Writes the archives of what runs around Weft unless they are there; returns their paths.
pub(crate) fn surroundings() -> anyhow::Result<Vec<PathBuf>> {
    let cache = cache()?;
    let bin = peers::directory()?.join("bin");
    let machine = debian::NODE.ensure(&cache)?;
    let prefix = "registry.k8s.io/e2e-test-images";
    let archives = ["pause", "coredns", "agnhost", "iptables", "regression"]
        .map(|name| cache.join(format!("{name}.tar")));
    if archives.iter().all(|archive| archive.is_file()) {
        return Ok(archives.into());
    }
    let [pause, coredns, agnhost, iptables, regression] = &archives;

    let layer = Layer::new(&cache, "pause")?;
    layer.program(&bin.join("pause"), "pause")?;
    let image = Image {
        names: &[PAUSE, "registry.k8s.io/pause:3.10"],
        entrypoint: &["/pause"],
        command: &[],
        user: Some("65535:65535"),
        layers: &[&layer.0],
    };
    image.write(pause)?;

    let layer = Layer::new(&cache, "coredns")?;
    layer.program(&bin.join("coredns"), "coredns")?;
    let image = Image {
        names: &[COREDNS],
        entrypoint: &["/coredns"],
        command: &[],
        user: None,
        layers: &[&layer.0],
    };
    image.write(coredns)?;

    let layer = Layer::new(&cache, "agnhost")?;
    layer.program(&bin.join("agnhost"), "agnhost")?;
    symlink("agnhost", layer.0.join("agnhost-2")).context("cannot link agnhost-2")?;
    layer.program(&bin.join("coredns"), "coredns")?;
    fs::create_dir_all(layer.0.join("uploads")).context("cannot create uploads")?;
    layer.agnhost_certificates()?;
    let names = [
        AGNHOST.to_owned(),
        format!("{prefix}/busybox:1.37.0-1"),
        format!("{prefix}/glibc-dns-testing:2.0.0"),
    ];
    let image = Image {
        names: &names.each_ref().map(String::as_str),
        entrypoint: &["/agnhost"],
        command: &["pause"],
        user: None,
        layers: &[&machine, &layer.0],
    };
    image.write(agnhost)?;

    let image = Image {
        names: &["registry.k8s.io/build-image/distroless-iptables:v0.9.6"],
        entrypoint: &[],
        command: &[],
        user: None,
        layers: &[&machine],
    };
    image.write(iptables)?;

    let layer = Layer::new(&cache, "regression")?;
    layer.program(
        &bin.join("regression-issue-74839"),
        "regression-issue-74839",
    )?;
    let image = Image {
        names: &[&format!("{prefix}/regression-issue-74839:1.4")],
        entrypoint: &["/regression-issue-74839"],
        command: &[],
        user: None,
        layers: &[&layer.0],
    };
    image.write(regression)?;
    Ok(archives.into())
}

/// A directory that becomes a layer.
struct Layer(PathBuf);

impl Layer {
    fn new(place: &Path, name: &str) -> anyhow::Result<Self> {
        let directory = place.join(format!("layer-{name}"));
        if directory.exists() {
            fs::remove_dir_all(&directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self(directory))
    }

    fn program(&self, source: &Path, path: &str) -> anyhow::Result<()> {
        let target = self.0.join(path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("cannot create {}", parent.display()))?;
        }
        fs::copy(source, &target)
            .with_context(|| format!("cannot copy {} into an image", source.display()))?;
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot make {} executable", target.display()))
    }

    /// A program without its debug information: every node unpacks a copy.
    fn stripped(&self, source: &Path, path: &str) -> anyhow::Result<()> {
        self.program(source, path)?;
        process::run(
            Command::new("strip")
                .arg("--strip-debug")
                .arg(self.0.join(path)),
        )
    }

    /// agnhost serves TLS with a pair of its sources.
    fn agnhost_certificates(&self) -> anyhow::Result<()> {
        let sources = peers::kubernetes_sources()?;
        for name in ["localhost.crt", "localhost.key"] {
            let source = sources.join("test/images/agnhost/porter").join(name);
            let target = self.0.join(name);
            fs::copy(&source, &target)
                .with_context(|| format!("cannot copy {}", source.display()))?;
            fs::set_permissions(&target, fs::Permissions::from_mode(0o644))
                .with_context(|| format!("cannot set the mode of {}", target.display()))?;
        }
        Ok(())
    }
}
