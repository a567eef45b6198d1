//! An authority of certificates for one run. Its key is in memory and nowhere else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use ringfence_core::policy::Host;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// No run speaks to more hosts with terminated TLS than are remembered.
const REMEMBERED: usize = 256;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// It cannot be made.
    #[error("a certificate cannot be made")]
    Make(#[from] rcgen::Error),
    /// It cannot be used.
    #[error("a certificate cannot be used")]
    Use(#[from] rustls::Error),
}

/// Makes certificates that a run trusts.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// All certificates share a key: making one is what takes time, and nothing is gained by several.
    leaf: KeyPair,
    made: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

impl Authority {
    /// A new one.
    pub fn new() -> Result<Self, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "ringfence, for one run");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer, leaf: KeyPair::generate()?, made: Mutex::default() })
    }

    /// What the run has to trust.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// How to be a host, that speaks HTTP/2 or only HTTP/1.
    pub(crate) fn server(
        &self,
        host: &Host,
        speaks_http2: bool,
    ) -> Result<Arc<ServerConfig>, AuthorityError> {
        let config = self.config(host)?;
        if speaks_http2 {
            return Ok(config);
        }
        let mut config = ServerConfig::clone(&config);
        config.alpn_protocols.retain(|protocol| protocol != b"h2");
        Ok(Arc::new(config))
    }

    fn config(&self, host: &Host) -> Result<Arc<ServerConfig>, AuthorityError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = made.get(host) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.make(host)?);
        if made.len() >= REMEMBERED {
            made.clear();
        }
        made.insert(host.clone(), Arc::clone(&config));
        Ok(config)
    }

    fn make(&self, host: &Host) -> Result<ServerConfig, AuthorityError> {
        let name = host.to_string();
        let mut params = CertificateParams::new([name.trim_matches(['[', ']']).to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, "ringfence");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&self.leaf, &self.issuer)?;
        let chain: Vec<CertificateDer<'static>> = vec![leaf.der().clone(), self.issuer.der().clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec(), b"http/1.0".to_vec()];
        Ok(config)
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}
