//! `topology show` and `topology apply`.

use taskparty_scheduler::api::wire::{Nothing, Topology};

use super::{Outcome, with_client};
use crate::args::TopologyCommand;
use crate::config::Config;
use crate::failure::{Exit, Failure};
use crate::output::{Output, Table};

/// Prints the topology, or makes it what it should be.
pub(crate) async fn run(command: TopologyCommand, config: &Config, output: Output) -> Outcome {
    let verb = match command {
        TopologyCommand::Show => "show",
        TopologyCommand::Apply => "apply",
        TopologyCommand::Acl(_) => return Err(Failure::not_yet("topology acl")),
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
        if verb == "show" && topology.items.iter().any(|item| item.state != "ok") {
            output.note(
                "`taskparty topology apply` makes what is missing and changes what is different",
            );
        }
        Ok(Exit::Done)
    })
    .await
}
