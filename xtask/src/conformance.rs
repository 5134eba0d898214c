use crate::{
    kubernetes, peers,
    process::{self, cargo},
};

/// Runs the tests of the crates that speak the Kubernetes API against a real kube-apiserver.
///
/// The tests are the same as in `make test`; `WEFT_TEST_KUBECONFIG` tells those that can to use
/// that server in place of the embedded one.
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
    let outcome = process::run(tests.env("WEFT_TEST_KUBECONFIG", kubeconfig));
    if !was_running {
        kubernetes::down()?;
    }
    outcome
}
