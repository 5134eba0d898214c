use crate::{
    kubernetes, peers,
    process::{self, cargo},
};

/// Runs the tests of the crates that speak the Kubernetes API against a real kube-apiserver.
///
/// The tests are the same as in `make test`; `WEFT_TEST_KUBECONFIG` tells those that can to use
/// that server in place of the embedded one. `weft routes` runs against it too, and it is asked
/// whether it would apply `deploy/`. The runtime's tests run once more against one that refuses
/// streaming lists. Then the service proxy is compared with a running kube-proxy,
/// over all the clusters whose seeds are kept, the live page is looked at in Chromium, and the aws
/// provider is run against moto.
pub(crate) fn run() -> anyhow::Result<()> {
    peers::build()?;
    let was_running = kubernetes::is_running();
    let kubeconfig = kubernetes::ensure()?;
    let mut tests = cargo();
    tests.args([
        "test",
        "--locked",
        "-p",
        "weft-runtime",
        "-p",
        "weft-apiserver",
    ]);
    let mut weft = cargo();
    weft.args(["test", "--locked", "-p", "weft", "--test", "it"]);
    weft.args(["--", "routes::", "deploy::"]);
    let outcome = process::run(tests.env("WEFT_TEST_KUBECONFIG", &kubeconfig))
        .and_then(|()| process::run(weft.env("WEFT_TEST_KUBECONFIG", &kubeconfig)));
    if !was_running {
        kubernetes::down()?;
    }
    outcome?;
    kubernetes::without_streaming_lists(|kubeconfig| {
        let mut tests = cargo();
        tests.args(["test", "--locked", "-p", "weft-runtime", "--test", "it"]);
        process::run(tests.env("WEFT_TEST_KUBECONFIG", kubeconfig))
    })?;
    beside_kube_proxy()?;
    browser()?;
    moto()
}

/// Looks at the live page in Chromium.
fn browser() -> anyhow::Result<()> {
    let mut tests = cargo();
    tests.args(["test", "--locked", "-p", "weft-dashboard", "--test", "it"]);
    tests.arg("browser::");
    process::run(tests.env("WEFT_MUST_RUN_PEERS", "1"))
}

/// Runs the aws provider against moto's server.
pub(crate) fn moto() -> anyhow::Result<()> {
    let moto = peers::Moto::start()?;
    let mut tests = cargo();
    tests.args([
        "test",
        "--locked",
        "-p",
        "weft-providers",
        "--test",
        "it",
        "moto",
    ]);
    tests.env("WEFT_MOTO_URL", moto.url());
    process::run(tests.env("WEFT_MUST_RUN_PEERS", "1"))
}

/// Random clusters of these seeds, from 1 on, were compared when the proxy was built.
const CLUSTERS: &str = "50";

fn beside_kube_proxy() -> anyhow::Result<()> {
    let mut tests = cargo();
    tests.args(["test", "--locked", "-p", "weft", "--test", "it"]);
    tests.args(["beside_kube_proxy", "--", "--nocapture"]);
    tests.env("WEFT_PROXY_CLUSTERS", CLUSTERS);
    process::run(tests.env("WEFT_MUST_RUN_PEERS", "1"))
}
