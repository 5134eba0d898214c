//! Certificates of the status server: from files, or generated for this process.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// Certificate and key in PEM form.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The chain, leaf first.
    pub certificate: PathBuf,
    /// PKCS#8, PKCS#1 or SEC1.
    pub key: PathBuf,
}

/// The source of a server's certificate.
pub(super) enum Certificate {
    Files(TlsFiles),
    SelfSigned,
}

impl Certificate {
    /// TLS acceptor with this certificate, for a server at this address.
    pub(super) fn acceptor(&self, address: SocketAddr) -> io::Result<TlsAcceptor> {
        let config = match self {
            Self::Files(files) => from_files(files)?,
            Self::SelfSigned => self_signed(address)?,
        };
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn from_files(files: &TlsFiles) -> io::Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(&files.certificate, error))?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unreadable(&files.key, error))?;
    ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| unreadable(&files.certificate, error))
}

fn self_signed(address: SocketAddr) -> io::Result<ServerConfig> {
    let names = vec!["localhost".to_owned(), address.ip().to_string()];
    let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
    let key =
        PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(io::Error::other)?;
    ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.into()], key)
        .map_err(io::Error::other)
}

fn unreadable(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}
