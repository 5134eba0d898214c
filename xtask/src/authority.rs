//! A certificate authority for clusters that live as long as a test.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

/// Signs certificates of servers and users.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, as PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn generate(name: &str) -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self(issuer))
    }

    /// Its certificate, and its key for a controller that signs in its name.
    pub(crate) fn pair(&self) -> Pair {
        Pair {
            certificate: self.0.pem(),
            key: self.0.key().serialize_pem(),
        }
    }

    /// The certificate of a server under these names and addresses.
    pub(crate) fn server(
        &self,
        name: &str,
        names: &[&str],
        addresses: &[IpAddr],
    ) -> anyhow::Result<Pair> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        for address in addresses {
            params.subject_alt_names.push(SanType::IpAddress(*address));
        }
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    /// The certificate of a user; Kubernetes reads user and group from its subject.
    pub(crate) fn user(&self, name: &str, group: Option<&str>) -> anyhow::Result<Pair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> anyhow::Result<Pair> {
        let key = KeyPair::generate()?;
        Ok(Pair {
            certificate: params.signed_by(&key, &self.0)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// A key pair without a certificate: public and private half, as PEM.
pub(crate) fn key_pair() -> anyhow::Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.public_key_pem(), key.serialize_pem()))
}
