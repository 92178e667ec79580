// A TaskParty executor on nats.go, to copy into a service. Why it does what it does: docs/protocol.md.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// Handler is a named function with so many slots.
type Handler struct {
	Slots int
	Call  func(ctx *Context) (any, error)
}

// Executor is one process of an app.
type Executor struct {
	App, Prefix string
	Handlers    map[string]Handler
	Drain       time.Duration
	instance    string
	startedAt   time.Time
	nc          *nats.Conn
	js          jetstream.JetStream
	mu          sync.Mutex
	live        map[string]*Context // what is in hand, by run, shard, attempt and delivery
	draining    context.Context
}

func (e *Executor) subject(kind string, rest ...string) string {
	return strings.Join(append([]string{e.Prefix, kind, e.App}, rest...), ".")
}

// Run works until ctx is done, then drains.
func (e *Executor) Run(ctx context.Context, url string) (err error) {
	e.instance, e.startedAt = "go-"+nuid.Next(), time.Now() // a new one at each start
	e.live, e.draining = map[string]*Context{}, ctx
	options := []nats.Option{nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.PingInterval(5 * time.Second)}
	if e.nc, err = nats.Connect(url, append(options, nats.ReconnectWait(time.Second/2))...); err != nil {
		return err
	}
	e.js, _ = jetstream.New(e.nc)
	e.nc.Subscribe(e.subject("cancel", ">"), e.cancel)
	e.nc.Subscribe(e.subject("probe", e.instance), e.probe)
	var slots sync.WaitGroup
	start := func(consumer string, count int) {
		for range count {
			slots.Go(func() { e.slot(consumer) })
		}
	}
	for name, handler := range e.Handlers {
		start(name, handler.Slots)
	}
	start("on_"+e.instance, 1)
	for ctx.Err() == nil {
		e.putEntry(false)
		wait(ctx, 5*time.Second)
	}
	e.putEntry(false) // draining
	idle, none := context.WithCancel(context.Background())
	go func() { slots.Wait(); none() }()
	wait(idle, e.Drain) // what runs may end
	e.each(func(ctx *Context) { ctx.stop(errDrained) })
	wait(idle, 5*time.Second)
	e.putEntry(true) // last
	return e.nc.Drain()
}

func wait(ctx context.Context, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(most):
	}
}

func (e *Executor) each(do func(*Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ctx := range e.live {
		do(ctx)
	}
}

func (e *Executor) putEntry(gone bool) {
	handlers := map[string]any{}
	for name, handler := range e.Handlers {
		running := []string{}
		e.each(func(ctx *Context) {
			if ctx.Handler == name {
				running = append(running, ctx.Job)
			}
		})
		handlers[name] = map[string]any{"slots": handler.Slots, "running": running}
	}
	host, _ := os.Hostname()
	msg := nats.NewMsg(fmt.Sprintf("$KV.%s_executors.%s.%s", e.Prefix, e.App, e.instance))
	msg.Data, _ = json.Marshal(map[string]any{"v": 1, "app": e.App, "instance": e.instance, "handlers": handlers,
		"host": host, "pid": os.Getpid(), "started_at": e.startedAt, "draining": e.draining.Err() != nil})
	if gone {
		msg.Data = nil
		msg.Header.Set("KV-Operation", "DEL")
	}
	if err := e.publish(msg); err != nil {
		log.Printf("not registered (does the scheduler run?): %v", err)
	}
}

func (e *Executor) cancel(msg *nats.Msg) {
	var asked struct {
		Run   string `json:"run"`
		Shard *int   `json:"shard"`
		By    string `json:"by"`
	}
	_ = json.Unmarshal(msg.Data, &asked)
	e.each(func(ctx *Context) {
		if ctx.Run == asked.Run && (asked.Shard == nil || *asked.Shard == ctx.Shard.Index) {
			ctx.stop(fmt.Errorf("%w by %s", errCancelled, asked.By))
		}
	})
}

func (e *Executor) probe(msg *nats.Msg) {
	var asked struct{ Job string }
	_ = json.Unmarshal(msg.Data, &asked)
	free, running := 0, false
	for _, handler := range e.Handlers {
		free += handler.Slots
	}
	e.each(func(ctx *Context) {
		free--
		running = running || ctx.Job == asked.Job
	})
	if e.draining.Err() != nil {
		free = 0
	}
	answer, _ := json.Marshal(map[string]any{"free": max(0, free), "running": running})
	_ = msg.Respond(answer)
}
