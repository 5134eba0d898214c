//! Certificates, keys and tokens for one throw-away API server.

use std::{fmt::Write as _, fs, io, net::Ipv4Addr, path::Path};

use anyhow::Context as _;

use crate::authority::{self, Authority, Pair};

/// The users that the server knows, by name, with their groups.
///
/// One may do everything; the other shows what a refusal looks like.
const USERS: [(&str, &str); 2] = [("admin", "system:masters"), ("nobody", "weft:unprivileged")];

pub(super) struct Credentials {
    authority: String,
    serving: Pair,
    service_account: (String, String),
    users: Vec<User>,
}

struct User {
    name: &'static str,
    group: &'static str,
    token: String,
    pair: Pair,
}

impl Credentials {
    pub(super) fn generate() -> anyhow::Result<Self> {
        let authority = Authority::generate("weft-kubernetes")?;
        let addresses = [Ipv4Addr::LOCALHOST.into()];
        Ok(Self {
            serving: authority.server("kube-apiserver", &["localhost"], &addresses)?,
            service_account: authority::key_pair()?,
            users: USERS
                .into_iter()
                .map(|(name, group)| User::generate(name, group, &authority))
                .collect::<anyhow::Result<_>>()?,
            authority: authority.pair().certificate,
        })
    }

    /// Writes all files that the server's flags name, and a kubeconfig.
    pub(super) fn write(&self, directory: &Path, port: u16) -> anyhow::Result<()> {
        let write = |name: &str, text: &str| {
            fs::write(directory.join(name), text).with_context(|| format!("write {name}"))
        };
        write("ca.crt", &self.authority)?;
        write("serving.crt", &self.serving.certificate)?;
        write("serving.key", &self.serving.key)?;
        write("service-account.pub", &self.service_account.0)?;
        write("service-account.key", &self.service_account.1)?;
        write("tokens.csv", &self.tokens())?;
        for user in &self.users {
            write(&format!("{}.crt", user.name), &user.pair.certificate)?;
            write(&format!("{}.key", user.name), &user.pair.key)?;
        }
        write("kubeconfig", &self.kubeconfig(directory, port))
    }

    fn tokens(&self) -> String {
        let line = |user: &User| format!("{},{1},{1},\"{2}\"\n", user.token, user.name, user.group);
        self.users.iter().map(line).collect()
    }

    /// A context for each user; the administrator's is the current one.
    fn kubeconfig(&self, directory: &Path, port: u16) -> String {
        let mut text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: admin\nclusters:\n- name: weft\n  \
             cluster:\n    server: https://127.0.0.1:{port}\n    certificate-authority: {}\n",
            directory.join("ca.crt").display()
        );
        text.push_str("users:\n");
        for User { name, token, .. } in &self.users {
            let user = format!("- name: {name}\n  user:\n    token: {token}\n");
            text.push_str(&user);
        }
        text.push_str("contexts:\n");
        for User { name, .. } in &self.users {
            let context =
                format!("- name: {name}\n  context:\n    cluster: weft\n    user: {name}\n");
            text.push_str(&context);
        }
        text
    }
}

impl User {
    fn generate(
        name: &'static str,
        group: &'static str,
        authority: &Authority,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            name,
            group,
            token: random_token().context("cannot draw a token")?,
            pair: authority.user(name, Some(group))?,
        })
    }
}

fn random_token() -> io::Result<String> {
    use std::io::Read as _;
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut token = String::new();
    for byte in bytes {
        write!(token, "{byte:02x}").expect("a string takes any text");
    }
    Ok(token)
}
