//! Every way in which a connection fails is named; and a connection lives on when its server
//! goes and comes back. Row N5 of the cases.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use taskparty_nats::connect::{
    ConnectConfig, ConnectError, Handshake, Secret, Tls, connect, connect_when_up, read_context,
    selected_context,
};
use taskparty_nats::server::{
    Cluster, ClusterConfig, JetStream, Search, Server, ServerConfig, find,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio_util::sync::CancellationToken;

fn server_config() -> ServerConfig {
    ServerConfig::new(find(&Search::from_env()).expect("nats/install.sh has been run").path)
}

async fn server_with(extra: &str) -> Server {
    Server::start(ServerConfig { extra: extra.to_owned(), ..server_config() }).await.unwrap()
}

async fn failure(config: ConnectConfig) -> ConnectError {
    let error = connect(&config).await.expect_err("this connection must fail");
    let text = error.to_string();
    assert!(!text.contains("hunter2"), "a password is shown: {text}");
    assert!(!text.contains('\n'), "more than one line: {text}");
    error
}

#[tokio::test]
async fn a_connection_knows_its_server_and_its_names() {
    let server = Server::start(server_config()).await.unwrap();
    let nats = connect(&ConnectConfig::new(server.url())).await.unwrap();
    assert!(nats.server().version.starts_with("2."));
    assert_eq!(nats.server().cluster, None);
    assert_eq!(nats.replicas(), 1);
    assert_eq!(nats.names().triggers_stream(), "TASKPARTY_TRIGGERS");
    nats.close(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn in_a_cluster_streams_are_stored_three_times() {
    let cluster = Cluster::start(ClusterConfig::new(server_config().binary)).await.unwrap();
    let nats = connect(&ConnectConfig::new(cluster.url())).await.unwrap();
    assert_eq!(nats.replicas(), 3);
    assert!(nats.server().cluster.is_some());
}

#[tokio::test]
async fn a_closed_port_is_named() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = failure(ConnectConfig::new(format!("nats://bob:hunter2@{closed}"))).await;
    assert!(
        matches!(&error, ConnectError::Refused { server } if server == &format!("nats://{closed}")),
        "{error}"
    );
}

#[tokio::test]
async fn an_http_port_is_named() {
    let server = Server::start(server_config()).await.unwrap();
    let url = server.monitor_url().replace("http://", "nats://");
    let error = failure(ConnectConfig::new(url)).await;
    assert!(matches!(error, ConnectError::NotNats { what: "an HTTP server", .. }), "{error}");

    let error = failure(ConnectConfig::new(server.monitor_url())).await;
    assert!(matches!(error, ConnectError::BadUrl { .. }), "{error}");
}

#[tokio::test]
async fn a_host_without_address_is_named() {
    let error = failure(ConnectConfig::new("nats://no-such-host.invalid")).await;
    assert!(matches!(error, ConnectError::UnknownHost { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_hangs_is_named() {
    let server = Server::start(server_config()).await.unwrap();
    server.pause().unwrap();
    let error = failure(ConnectConfig::new(server.url())).await;
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn jetstream_that_is_off_is_named() {
    let server =
        Server::start(ServerConfig { jetstream: JetStream::Off, ..server_config() }).await.unwrap();
    let error = failure(ConnectConfig::new(server.url())).await;
    assert!(matches!(error, ConnectError::NoJetStream { whole_server: true, .. }), "{error}");

    let server = server_with("accounts { A { users: [{user: bob, password: hunter2}] } }").await;
    let config = ConnectConfig::new(format!("nats://bob:hunter2@{}", server.address()));
    let error = failure(config).await;
    assert!(matches!(error, ConnectError::NoJetStream { whole_server: false, .. }), "{error}");
}

/// A server of another version, as far as a client sees it before it asks for anything.
async fn greeting_of(version: &'static str) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (read, mut write) = stream.into_split();
            let info = format!(
                "INFO {{\"version\":\"{version}\",\"max_payload\":1048576,\"headers\":true}}\r\n"
            );
            write.write_all(info.as_bytes()).await.unwrap();
            let mut lines = BufReader::new(read).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if line == "PING" && write.write_all(b"PONG\r\n").await.is_err() {
                    break;
                }
            }
        }
    });
    (url, serving)
}

#[tokio::test]
async fn an_old_server_is_named_with_its_version() {
    let (url, serving) = greeting_of("2.10.26").await;
    let error = failure(ConnectConfig::new(url)).await;
    assert!(
        matches!(&error, ConnectError::TooOld { version, .. } if version == "2.10.26"),
        "{error}"
    );
    assert!(error.to_string().contains("2.12"), "{error}");
    serving.abort();
}

#[tokio::test]
async fn wrong_credentials_are_named_without_the_secret() {
    let server = server_with("authorization { users: [{user: alice, password: right}] }").await;
    let with_user = ConnectConfig {
        user: Some("bob".into()),
        password: Some(Secret::new("hunter2")),
        ..ConnectConfig::new(server.url())
    };
    assert!(!format!("{with_user:?}").contains("hunter2"));
    let error = failure(with_user).await;
    assert!(
        matches!(&error, ConnectError::Unauthorized { identity, .. } if identity.contains("bob")),
        "{error}"
    );

    let error = failure(ConnectConfig::new(format!("nats://hunter2@{}", server.address()))).await;
    assert!(
        matches!(&error, ConnectError::Unauthorized { identity, .. } if identity.contains("token")),
        "{error}"
    );
    let error = failure(ConnectConfig::new(server.url())).await;
    assert!(matches!(&error, ConnectError::Unauthorized { .. }), "{error}");

    connect(&ConnectConfig::new(format!("nats://alice:right@{}", server.address()))).await.unwrap();
}

#[tokio::test]
async fn an_nkey_file_is_accepted_and_another_file_is_not() {
    // Made for this test; good for nothing else.
    let server = server_with(
        "authorization { users: [{nkey: UD6DPWWRBEEAJW6DRDFDDXUVMO4AHNQQN555XGN5ZSATU43XSLBYQLSR}] }",
    )
    .await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("user.nk");
    let config = ConnectConfig { nkey: Some(file.clone()), ..ConnectConfig::new(server.url()) };
    assert!(matches!(failure(config.clone()).await, ConnectError::File { .. }));
    std::fs::write(&file, "something else").unwrap();
    assert!(matches!(failure(config.clone()).await, ConnectError::BadCredentials { .. }));
    std::fs::write(&file, "SUAF5XISRWRZSDIB5NRPH2RMXRN5CE6DVVRJV5QQ7ZLBOIGP7BP4CXYR6M\n").unwrap();
    connect(&config).await.unwrap();
}

#[tokio::test]
async fn a_missing_permission_is_named_with_the_subject() {
    let server = server_with(
        "authorization { users: [
            {user: mute, password: hunter2, permissions: {publish: \"x\", subscribe: \">\"}}
            {user: deaf, password: hunter2, permissions: {publish: \">\", subscribe: \"x\"}}
        ] }",
    )
    .await;
    let error =
        failure(ConnectConfig::new(format!("nats://mute:hunter2@{}", server.address()))).await;
    assert!(
        matches!(&error, ConnectError::Denied { action, .. } if action == "to publish to \"$JS.API.INFO\""),
        "{error}"
    );
    let error =
        failure(ConnectConfig::new(format!("nats://deaf:hunter2@{}", server.address()))).await;
    assert!(
        matches!(&error, ConnectError::Denied { action, .. } if action.starts_with("to subscribe to \"_INBOX")),
        "{error}"
    );
}

struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    fn make() -> Self {
        use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.path().join("ca.pem"), ca.pem()).unwrap();
        for (name, host) in [("server", "127.0.0.1"), ("client", "someone")] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            let cert = params.signed_by(&key, &ca).unwrap();
            std::fs::write(dir.path().join(format!("{name}.pem")), cert.pem()).unwrap();
            std::fs::write(dir.path().join(format!("{name}-key.pem")), key.serialize_pem())
                .unwrap();
        }
        Self { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn server(&self, more: &str) -> String {
        format!(
            "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, {more} }}",
            self.file("server.pem"),
            self.file("server-key.pem"),
            self.file("ca.pem")
        )
    }
}

#[tokio::test]
async fn disagreement_about_tls_is_named() {
    let made = Certificates::make();
    let trusting = Tls { ca: Some(made.file("ca.pem")), ..Tls::default() };
    let known = Tls {
        cert: Some(made.file("client.pem")),
        key: Some(made.file("client-key.pem")),
        ..trusting.clone()
    };
    let with =
        |url: String, tls: &Tls| ConnectConfig { tls: tls.clone(), ..ConnectConfig::new(url) };
    let reason = |error: ConnectError| match error {
        ConnectError::Tls { reason, .. } => reason,
        other => panic!("not a TLS error: {other}"),
    };

    let plain = Server::start(server_config()).await.unwrap();
    assert!(reason(failure(with(plain.url(), &trusting)).await).contains("the server has none"));
    let url = plain.url().replace("nats://", "tls://");
    assert!(reason(failure(ConnectConfig::new(url)).await).contains("the server has none"));

    let server = server_with(&made.server("")).await;
    connect(&with(server.url(), &trusting)).await.unwrap();
    let said = reason(failure(ConnectConfig::new(server.url())).await);
    assert!(said.contains("certificate"), "{said}");

    let strict = server_with(&made.server("verify: true")).await;
    connect(&with(strict.url(), &known)).await.unwrap();
    assert!(reason(failure(with(strict.url(), &trusting)).await).contains("client certificate"));

    let first = server_with(&made.server("handshake_first: true")).await;
    assert!(reason(failure(with(first.url(), &trusting)).await).contains("TLS first"));
    let tls = Tls { handshake: Handshake::First, ..trusting.clone() };
    connect(&with(first.url(), &tls)).await.unwrap();

    let half = Tls { cert: Some(made.file("client.pem")), ..trusting };
    assert!(matches!(failure(with(server.url(), &half)).await, ConnectError::HalfCertificate));
}

#[tokio::test]
async fn a_service_waits_for_its_server_and_outlives_its_restarts() {
    let mut server = Server::start(server_config()).await.unwrap();
    let config = ConnectConfig::new(server.url());
    server.kill();

    let shutdown = CancellationToken::new();
    let waiting = tokio::spawn({
        let (config, shutdown) = (config.clone(), shutdown.clone());
        async move { connect_when_up(&config, &shutdown).await }
    });
    server.restart().await.unwrap();
    let nats =
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap().unwrap();

    server.kill();
    server.restart().await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while nats.js().query_account().await.is_err() {
        assert!(Instant::now() < deadline, "the connection does not come back");
    }
}

#[tokio::test]
async fn waiting_ends_on_shutdown_and_does_not_begin_for_a_fault_of_our_own() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let waiting = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { connect_when_up(&ConnectConfig::new(format!("nats://{closed}")), &shutdown).await }
    });
    shutdown.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    assert!(matches!(ended, Err(ConnectError::Stopped)));

    let never = CancellationToken::new();
    let config =
        ConnectConfig { creds: Some("/nowhere/user.creds".into()), ..ConnectConfig::default() };
    assert!(matches!(connect_when_up(&config, &never).await, Err(ConnectError::File { .. })));
}

#[test]
fn contexts_of_the_nats_cli_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let contexts = dir.path().join("nats/context");
    std::fs::create_dir_all(&contexts).unwrap();
    let write = |name: &str, text: &str| std::fs::write(contexts.join(name), text).unwrap();
    write(
        "prod.json",
        r#"{"description": "", "url": "nats://a,nats://b", "creds": "~/prod.creds", "user": "", "tls_first": true,
            "inbox_prefix": "_INBOX_me", "jetstream_domain": "hub", "color_scheme": "x"}"#,
    );
    write("broken.json", r#"{"url": "nats://a", "password": 7}"#);
    write("nsc.json", r#"{"nsc": "nsc://operator/account/user"}"#);
    std::fs::write(dir.path().join("nats/context.txt"), "prod\n").unwrap();

    assert_eq!(selected_context(dir.path()).as_deref(), Some("prod"));
    let context = read_context(dir.path(), Some(Path::new("/home/me")), "prod").unwrap();
    assert_eq!(context.url.as_deref(), Some("nats://a,nats://b"));
    assert_eq!(context.creds.as_deref(), Some(Path::new("/home/me/prod.creds")));
    assert_eq!(context.user, None);
    assert_eq!(context.tls.handshake, Handshake::First);
    assert_eq!(context.jetstream_domain.as_deref(), Some("hub"));

    let mine =
        ConnectConfig { user: Some("bob".into()), ..ConnectConfig::new("nats://c") }.or(context);
    assert_eq!((mine.url.as_deref(), mine.creds), (Some("nats://c"), None));

    let read = |name| read_context(dir.path(), None, name).unwrap_err();
    assert!(matches!(read("broken"), ConnectError::BadContext { .. }));
    assert!(
        matches!(read("nsc"), ConnectError::BadContext { reason, .. } if reason.contains("creds"))
    );
    assert!(matches!(read("../prod"), ConnectError::UnknownContext { .. }));
    assert!(
        matches!(read("other"), ConnectError::UnknownContext { known, .. } if known == ["broken", "nsc", "prod"])
    );
}
