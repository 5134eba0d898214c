//! A namespace in which a proxy runs: everything a client or an endpoint may be is at home there.

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

/// Endpoints and clients.
pub(crate) const CLUSTER_CIDR: &str = "10.128.0.0/9";

/// A client's address, inside of it: nothing is masqueraded.
const CLIENT: &str = "10.250.0.1";

/// Services. Where no rule sends it on, a connection to one of them is refused at once.
const SERVICE_CIDR: &str = "10.96.0.0/16";

/// Makes a namespace that answers on every endpoint's address.
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

/// Tells every client which side it has reached.
fn answer(listener: &TcpListener, side: Side) {
    for stream in listener.incoming().flatten() {
        // A client that is gone already does not want to know.
        let _ = (&stream).write_all(&[side.byte()]);
    }
}

/// Directories in which `iptables` means one variant's programs, as a container's image would
/// decide it.
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

    /// A variant's program that writes rules of IPv4.
    pub(crate) fn restore(&self, variant: Variant) -> PathBuf {
        let own = self.directory.path().join(variant.name());
        own.join("iptables-restore")
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.log"))
    }
}

/// Where a program is.
pub(crate) fn find(program: &str) -> anyhow::Result<PathBuf> {
    search_path()
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
        .with_context(|| format!("`{program}` is not installed"))
}

/// Administrators' programs are not on everyone's `PATH`.
fn search_path() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = env::split_paths(&path).collect();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    path.into_iter().chain(more)
}
