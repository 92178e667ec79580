//! Requests to stop a run.
//!
//! They come on a subscription that stands before any work is pulled, and come again each second
//! until the run has ended (decision 23). One for a run that is not here means another instance.

use std::sync::Arc;

use async_nats::Subscriber;
use futures::StreamExt;
use taskparty_common::dispatch::Cancel;
use tokio_util::sync::CancellationToken;

use crate::node::Node;

/// Passes requests on until `end`.
pub(crate) async fn listen(node: Arc<Node>, mut requests: Subscriber, end: CancellationToken) {
    while let Some(Some(message)) = end.run_until_cancelled(requests.next()).await {
        match serde_json::from_slice::<Cancel>(&message.payload) {
            Ok(cancel) => node.live.cancel(&cancel),
            Err(error) => {
                tracing::warn!(subject = %message.subject, %error, "A request to cancel could not be read.");
            }
        }
    }
}
