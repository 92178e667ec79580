//! Scripts, programs and requests, run by real processes and against real servers.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod bench;
mod closed;
mod http;
mod outcome;
#[path = "../executor/rig.rs"]
#[allow(dead_code, reason = "shared; these tests need a part of it")]
mod rig;
mod said;
mod stop;
mod web;
