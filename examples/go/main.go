// A service with a few handlers. NATS_URL=nats://127.0.0.1:4222 go run .
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// with reads the params as P before the handler is called.
func with[P any](call func(*Context, P) (any, error)) func(*Context) (any, error) {
	return func(ctx *Context) (any, error) {
		var params P
		if err := json.Unmarshal(ctx.Params, &params); err != nil {
			return nil, errors.Join(ErrBadParams, err)
		}
		return call(ctx, params)
	}
}

// echo gives back what it got.
func echo(ctx *Context, params any) (any, error) {
	ctx.Log("echo")
	return map[string]any{"params": params, "key": ctx.IdempotencyKey, "shard": ctx.Shard,
		"attempt": ctx.Attempt, "delivery": ctx.Delivery}, nil
}

// sleep takes its time: {"ms": 500}.
func sleep(ctx *Context, params struct{ Ms *int64 }) (any, error) {
	if params.Ms == nil {
		return nil, fmt.Errorf("ms: a number of milliseconds is missing: %w", ErrBadParams)
	}
	select {
	case <-time.After(time.Duration(*params.Ms) * time.Millisecond):
		return map[string]any{"delivery": ctx.Delivery}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// fail fails; the job's `retry` decides what follows.
func fail(_ *Context, params any) (any, error) { return nil, fmt.Errorf("cannot do it: %v", params) }

// fatal fails, and nobody needs to try again.
func fatal(_ *Context, params any) (any, error) {
	return nil, fmt.Errorf("never: %v: %w", params, ErrFatal)
}

// fault has a fault.
func fault(_ *Context, _ any) (any, error) { return []int{}[1:], nil }

// deaf takes its time, and heeds nothing.
func deaf(_ *Context, params struct{ Ms int64 }) (any, error) {
	time.Sleep(time.Duration(params.Ms) * time.Millisecond)
	return nil, nil
}

func setting(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	drain, err := strconv.ParseFloat(setting("TASKPARTY_DRAIN", "30"), 64)
	if err != nil {
		log.Fatalf("TASKPARTY_DRAIN is a number of seconds: %v", err)
	}
	executor := &Executor{App: setting("TASKPARTY_APP", "go-demo"), Prefix: "taskparty",
		Drain: time.Duration(drain * float64(time.Second)),
		Handlers: map[string]Handler{"echo": {4, with(echo)}, "sleep": {2, with(sleep)}, "fail": {1, with(fail)},
			"fatal": {1, with(fatal)}, "panic": {1, with(fault)}, "deaf": {1, with(deaf)}}}
	if err := executor.Run(ctx, setting("NATS_URL", "nats://127.0.0.1:4222")); err != nil {
		log.Fatal(err)
	}
}
