//! `topology show` and `topology apply`.

use serde::Serialize;
use taskparty_common::name::App;
use taskparty_nats::acl::Rights;
use taskparty_nats::subject::Names;
use taskparty_scheduler::api::wire::{Nothing, Problem, Topology};

use super::{Outcome, with_client};
use crate::args::TopologyCommand;
use crate::config::Config;
use crate::failure::Exit;
use crate::output::{Output, Table};

/// Prints the topology, or makes it what it should be.
pub(crate) async fn run(command: TopologyCommand, config: &Config, output: Output) -> Outcome {
    let verb = match command {
        TopologyCommand::Show => "show",
        TopologyCommand::Apply => "apply",
        TopologyCommand::Acl(args) => return acl(&args.app, config, output),
    };
    with_client(config, |client| async move {
        let topology: Topology = client.call("topology", verb, &Nothing {}).await?;
        output.print(&topology, |topology| {
            let mut table = Table::new(&["kind", "name", "state", "difference"]);
            for item in &topology.items {
                table.row([&item.kind, &item.name, &item.state, &item.differences.join("; ")]);
            }
            table.text()
        })?;
        let is_wrong = |state: &str| matches!(state, "missing" | "different");
        if verb == "show" && topology.items.iter().any(|item| is_wrong(&item.state)) {
            output.note(
                "`taskparty topology apply` makes what is missing and changes what is different",
            );
        }
        Ok(Exit::Done)
    })
    .await
}

/// Whose rights are what.
#[derive(Debug, Serialize)]
struct Acl {
    /// The executors of the app.
    executors: Rights,
    /// A node: `taskparty serve`.
    node: Rights,
}

/// Prints what to grant, as entries of `users` in the server's configuration.
fn acl(app: &str, config: &Config, output: Output) -> Outcome {
    let app = App::new(app).map_err(|error| Problem::field("--app", None, error.to_string()))?;
    let names = Names::new(config.nats.prefix.clone());
    let acl = Acl { executors: Rights::executors(&names, &app), node: Rights::node(&names) };
    output.print(&acl, |acl| {
        let part = |what: &str, rights: &Rights| {
            let inbox = &rights.inbox_prefix;
            format!("# {what}; they connect with the inbox prefix {inbox}\n{}", rights.conf())
        };
        let executors = part(&format!("The executors of {app}"), &acl.executors);
        format!("{executors}\n{}", part("Nodes, as taskparty serve", &acl.node))
    })?;
    Ok(Exit::Done)
}
