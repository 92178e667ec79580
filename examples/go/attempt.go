// One attempt: the lease is kept, the handler called, the result stored, and then the work acked.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go"
)

func (c *Context) lease() time.Duration { return time.Duration(c.LeaseMs) * time.Millisecond }

// extended says that the lease runs from `since` on.
func (c *Context) extended(since time.Time) { c.since.Store(&since) }

// leaseLeft goes by both clocks, since the monotonic one stands still while a machine is suspended.
// It is 5 % short: we stop a little before the server gives the work away.
func (c *Context) leaseLeft() time.Duration {
	since := *c.since.Load()
	return c.lease()*95/100 - max(time.Since(since), time.Now().Round(0).Sub(since.Round(0)))
}

// keepLease extends the lease until the attempt is over; one that is lost stops it.
func (c *Context) keepLease() {
	for c.settled.Err() == nil {
		wait(c.settled, min(c.lease()/3, c.leaseLeft()))
		if c.leaseLeft() <= 0 {
			c.stop(errLeaseLost)
			return
		}
		sent := time.Now()
		if err := c.executor.answer(c.msg, "+WPI"); err != nil {
			log.Printf("a lease was not extended: %v", err)
		} else if c.leaseLeft() > 0 {
			c.extended(sent)
		}
	}
}

func (c *Context) seeThrough() {
	started := time.Now()
	shard := Shard{Index: c.Shard.Index, Total: c.Shard.Total}
	result := &Result{V: 1, Run: c.Run, Job: c.Job, Shard: shard, Attempt: c.Attempt, Delivery: c.Delivery,
		Instance: c.executor.instance, Retryable: true, FireTime: c.FireTime}
	handler, known := c.executor.Handlers[c.Handler]
	switch {
	case c.Delivery > c.MaxDeliveries:
		result.Outcome, result.Code = "lost", "executor_lost"
	case c.Delivery == 1 && started.After(c.StartBy):
		result.Outcome, result.Code = "not_started", "start_deadline"
	case !known:
		result.failed("unknown_handler", "this executor has no handler "+c.Handler)
	default:
		result.StartedAt = &started
		result.call(c, handler)
	}
	if errors.Is(context.Cause(c), errDrained) && result.Outcome == "" {
		_ = c.executor.answer(c.msg, "-NAK") // somebody else's now
		return
	}
	result.FinishedAt = time.Now()
	msg := nats.NewMsg(c.executor.subject("result"))
	msg.Data, _ = json.Marshal(result)
	stored := func() error { return c.executor.publish(msg) }
	acked := func() error { return c.executor.answer(c.msg, "+ACK") }
	for _, step := range []func() error{stored, acked} { // in this order
		for err := errTimeout; err != nil; {
			if c.leaseLeft() <= 0 {
				return // somebody else may have it by now, and what he says counts
			}
			if err = step(); err != nil {
				log.Printf("not reported yet: %v", err)
				time.Sleep(time.Second / 2)
			}
		}
	}
}

// call calls the handler and waits for whatever ends it. Without an outcome, nothing is to be said.
func (r *Result) call(c *Context, handler Handler) {
	if c.TimeoutMs != nil {
		timer := time.AfterFunc(time.Duration(*c.TimeoutMs)*time.Millisecond, func() { c.stop(errTimeout) })
		defer timer.Stop()
	}
	announce := time.AfterFunc(100*time.Millisecond, func() { r.announce(c) })
	defer announce.Stop()
	ended := make(chan func(), 1) // what to do with the result
	c.call.Go(func() {
		defer func() {
			if fault := recover(); fault != nil {
				ended <- func() { r.failed("handler_panic", fmt.Sprint("the handler panicked: ", fault)) }
			}
		}()
		output, err := handler.Call(c)
		ended <- func() { r.returned(output, err) }
	})
	select {
	case end := <-ended:
		end()
		return
	case <-c.Done():
	}
	cause := context.Cause(c)
	r.Message = cause.Error()
	if !errors.Is(cause, errLeaseLost) {
		select { // a moment to tidy up
		case <-ended:
		case <-time.After(time.Second):
			r.Message += "; its code did not stop and may still be at work"
		}
	}
	switch {
	case errors.Is(cause, errTimeout):
		r.Outcome, r.Code = "timed_out", "timeout"
	case errors.Is(cause, errCancelled):
		r.Outcome, r.Code, r.Retryable = "cancelled", "cancelled", false
	}
}

func (r *Result) announce(c *Context) {
	started, _ := json.Marshal(map[string]any{"v": 1, "run": r.Run, "job": r.Job, "shard": r.Shard.Index,
		"attempt": r.Attempt, "delivery": r.Delivery, "instance": r.Instance, "started_at": r.StartedAt})
	_ = c.executor.nc.Publish(c.executor.subject("started"), started)
}
