//! The testbed of a proxy: a namespace that has all addresses of clients and endpoints, and the
//! iptables programs of one variant.

use std::{
    env,
    ffi::OsString,
    fs,
    io::Write as _,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::symlink,
    path::PathBuf,
    sync::Arc,
    thread,
};

use anyhow::Context as _;
use weft_testkit::lab::Namespace;

use crate::proxy::{
    arm::Variant,
    objects::{NODE_ADDRESS, Side},
};

/// Range of endpoints and clients.
pub(crate) const CLUSTER_CIDR: &str = "10.128.0.0/9";

/// Address of the client, in the cluster CIDR: nothing is masqueraded.
const CLIENT: &str = "10.250.0.1";

/// Range of Services. Without a DNAT rule a connection to one of them is refused at once.
const SERVICE_CIDR: &str = "10.96.0.0/16";

/// Creates a namespace that answers on every endpoint's address.
pub(crate) fn create(name: &str) -> anyhow::Result<Arc<Namespace>> {
    let namespace = Namespace::create(name);
    let ip = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        namespace.program("ip", &arguments)
    };
    ip(&format!("address add {NODE_ADDRESS}/32 dev lo"));
    ip(&format!("address add {CLIENT}/32 dev lo"));
    for network in [CLUSTER_CIDR, SERVICE_CIDR] {
        ip(&format!("route add local {network} dev lo src {CLIENT}"));
    }
    for side in Side::ALL {
        let address = (Ipv4Addr::UNSPECIFIED, side.port());
        let listener = namespace.run(|| TcpListener::bind(address))?;
        thread::spawn(move || answer(&listener, side));
    }
    Ok(Arc::new(namespace))
}

/// Sends every client the byte of the side that it has reached.
fn answer(listener: &TcpListener, side: Side) {
    for stream in listener.incoming().flatten() {
        // The client may have closed the connection.
        let _ = (&stream).write_all(&[side.byte()]);
    }
}

/// Directories in which `iptables` is a link to one variant's program, as in a container image.
pub(crate) struct Programs {
    directory: tempfile::TempDir,
}

impl Programs {
    pub(crate) fn link() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        for variant in [Variant::Legacy, Variant::Nft] {
            let own = directory.path().join(variant.name());
            fs::create_dir(&own)?;
            for family in ["iptables", "ip6tables"] {
                for verb in ["", "-save", "-restore"] {
                    let program = find(&format!("{family}-{}{verb}", variant.name()))?;
                    symlink(program, own.join(format!("{family}{verb}")))?;
                }
            }
        }
        Ok(Self { directory })
    }

    /// The value of `PATH` for a variant.
    pub(crate) fn path(&self, variant: Variant) -> anyhow::Result<OsString> {
        let own = self.directory.path().join(variant.name());
        Ok(env::join_paths([own].into_iter().chain(search_path()))?)
    }

    /// Path of a variant's `iptables-restore`.
    pub(crate) fn restore(&self, variant: Variant) -> PathBuf {
        let own = self.directory.path().join(variant.name());
        own.join("iptables-restore")
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.log"))
    }
}

/// Path of a program.
pub(crate) fn find(program: &str) -> anyhow::Result<PathBuf> {
    search_path()
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
        .with_context(|| format!("cannot find `{program}`: it is not installed"))
}

/// `PATH` and the `sbin` directories, which are not in the `PATH` of every user.
fn search_path() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = env::split_paths(&path).collect();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    path.into_iter().chain(more)
}
