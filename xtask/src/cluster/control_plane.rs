//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes in node 1's network.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use super::{
    node::Node,
    settings::{API_PORT, Network, Settings},
};
use crate::process;

const START_LIMIT: Duration = Duration::from_mins(2);

/// The processes that run, in the order of their start.
pub(crate) struct ControlPlane {
    directory: PathBuf,
    programs: PathBuf,
    settings: Settings,
    running: Vec<(&'static str, Child)>,
}

impl ControlPlane {
    /// Starts them and waits until the API server is ready.
    pub(super) fn start(
        settings: &Settings,
        directory: &Path,
        programs: &Path,
        node: &Node,
    ) -> anyhow::Result<Self> {
        let mut this = Self {
            directory: directory.to_owned(),
            programs: programs.to_owned(),
            settings: settings.clone(),
            running: Vec::new(),
        };
        for name in ["etcd", "kube-apiserver"] {
            this.start_one(name, node)?;
        }
        this.wait_until_ready(node)?;
        for name in ["kube-controller-manager", "kube-scheduler"] {
            this.start_one(name, node)?;
        }
        Ok(this)
    }

    /// Starts one of them.
    pub(crate) fn start_one(&mut self, name: &'static str, node: &Node) -> anyhow::Result<()> {
        let flags = match name {
            "etcd" => self.etcd_flags(),
            "kube-apiserver" => self.apiserver_flags(),
            "kube-controller-manager" => self.controller_manager_flags(),
            _ => self.scheduler_flags(),
        };
        let path = self.directory.join("logs").join(format!("{name}.log"));
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let mut command: Command = node.in_network(self.programs.join(name))?;
        command
            .args(flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        self.running.push((name, child));
        Ok(())
    }

    /// Ends one of them.
    pub(crate) fn stop_one(&mut self, name: &str) -> anyhow::Result<()> {
        let position = self.running.iter().position(|(known, _)| *known == name);
        let (_, mut child) = self
            .running
            .remove(position.with_context(|| format!("{name} is not running"))?);
        child.kill().with_context(|| format!("cannot end {name}"))?;
        child
            .wait()
            .with_context(|| format!("cannot wait for {name}"))?;
        Ok(())
    }

    pub(crate) fn wait_until_ready(&mut self, node: &Node) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        let kubeconfig = self.directory.join("credentials/admin.kubeconfig");
        loop {
            let mut question = node.in_network(self.programs.join("kubectl"))?;
            question.arg("--kubeconfig").arg(&kubeconfig);
            if process::succeeds(question.args(["get", "--raw", "/readyz", "--request-timeout=2s"]))
            {
                return Ok(());
            }
            for (name, child) in &mut self.running {
                if let Some(status) = child.try_wait()? {
                    bail!(
                        "{name} ended: {status}; see {}",
                        self.directory.join("logs").display()
                    );
                }
            }
            if Instant::now() > deadline {
                bail!("kube-apiserver is not ready after {START_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn credential(&self, flag: &str, name: &str) -> String {
        let path = self.directory.join("credentials").join(name);
        format!("--{flag}={}", path.display())
    }

    fn etcd_flags(&self) -> Vec<String> {
        let (client, peer) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
        vec![
            format!("--data-dir={}", self.directory.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            // Its data ends with the cluster.
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ]
    }

    fn apiserver_flags(&self) -> Vec<String> {
        let families = self.settings.families;
        vec![
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--secure-port={API_PORT}"),
            format!("--advertise-address={}", families.api_address()),
            self.credential("tls-cert-file", "apiserver.crt"),
            self.credential("tls-private-key-file", "apiserver.key"),
            self.credential("client-ca-file", "ca.crt"),
            self.credential("kubelet-client-certificate", "kubelet-client.crt"),
            self.credential("kubelet-client-key", "kubelet-client.key"),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            self.credential("requestheader-client-ca-file", "front.crt"),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            self.credential("proxy-client-cert-file", "front-client.crt"),
            self.credential("proxy-client-key-file", "front-client.key"),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!(
                "--service-cluster-ip-range={}",
                families.service_cidrs().join(",")
            ),
            self.credential("service-account-key-file", "service-account.pub"),
            self.credential("service-account-signing-key-file", "service-account.key"),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        ]
    }

    fn controller_manager_flags(&self) -> Vec<String> {
        let mut flags = vec![
            self.credential("kubeconfig", "kube-controller-manager.kubeconfig"),
            self.credential("service-account-private-key-file", "service-account.key"),
            self.credential("root-ca-file", "ca.crt"),
            self.credential("cluster-signing-cert-file", "ca.crt"),
            self.credential("cluster-signing-key-file", "ca.key"),
            "--use-service-account-credentials".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
        ];
        let families = self.settings.families;
        match self.settings.network {
            Network::Weft => flags.push("--allocate-node-cidrs=false".to_owned()),
            Network::KubeProxy => flags.extend([
                "--allocate-node-cidrs=true".to_owned(),
                format!("--cluster-cidr={}", families.cluster_cidrs().join(",")),
                format!(
                    "--service-cluster-ip-range={}",
                    families.service_cidrs().join(",")
                ),
            ]),
        }
        flags
    }

    fn scheduler_flags(&self) -> Vec<String> {
        vec![
            self.credential("kubeconfig", "kube-scheduler.kubeconfig"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
        ]
    }
}
