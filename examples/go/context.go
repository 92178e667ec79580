// What a handler is given, how it says what should follow, and what becomes of that.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const maxMessage, maxOutput = 8 * 1024, 64 * 1024 // bytes

// Errors to return, wrapped or joined with others. After any other error the job's `retry` decides.
var (
	ErrFatal     = errors.New("no other attempt will do better")
	ErrBadParams = errors.New("the params are not what the handler takes")
	errCancelled = errors.New("cancelled")
	errDrained   = errors.New("the drain time is over")
	errLeaseLost = errors.New("the lease was lost")
	errTimeout   = errors.New("the handler was stopped at its timeout")
)

type Shard struct {
	Index int             `json:"index"`
	Total int             `json:"total"`
	Param json.RawMessage `json:"param,omitempty"`
}

// Dispatch is one attempt of one shard of a run.
type Dispatch struct {
	Run            string          `json:"run"`
	Job            string          `json:"job"`
	Handler        string          `json:"handler"`
	Params         json.RawMessage `json:"params"`
	Shard          Shard           `json:"shard"`
	Attempt        int             `json:"attempt"`
	FireTime       time.Time       `json:"fire_time"` // decides which day is settled; never the time now
	StartBy        time.Time       `json:"start_by"`
	TimeoutMs      *int64          `json:"timeout_ms"`
	LeaseMs        int64           `json:"lease_ms"`
	MaxDeliveries  uint64          `json:"max_deliveries"`
	IdempotencyKey string          `json:"idempotency_key"` // give it to whatever must happen only once
}

// Context is one delivery of it. It is done when the handler has to stop.
type Context struct {
	context.Context
	Dispatch
	Delivery uint64
	executor *Executor
	msg      *nats.Msg
	stop     context.CancelCauseFunc
	settled  context.Context           // done when nothing more is to be said of it
	since    atomic.Pointer[time.Time] // when what last extended the lease was sent
	call     sync.WaitGroup            // the handler, until it has returned
}

// Log writes to the run's log.
func (c *Context) Log(text string) {
	msg := nats.NewMsg(c.executor.subject("log", c.Job))
	msg.Data = []byte(text)
	msg.Header.Set("Taskparty-Run", c.Run)
	msg.Header.Set("Taskparty-Shard", strconv.Itoa(c.Shard.Index))
	msg.Header.Set("Taskparty-Attempt", strconv.Itoa(c.Attempt))
	msg.Header.Set("Taskparty-Level", "info")
	_ = c.executor.nc.PublishMsg(msg)
}

// Result is how an attempt ended.
type Result struct {
	V          int             `json:"v"`
	Run        string          `json:"run"`
	Job        string          `json:"job"`
	Shard      Shard           `json:"shard"`
	Attempt    int             `json:"attempt"`
	Delivery   uint64          `json:"delivery"`
	Instance   string          `json:"instance"`
	Outcome    string          `json:"outcome"`
	Code       string          `json:"code,omitempty"`
	Message    string          `json:"message,omitempty"`
	Output     json.RawMessage `json:"output,omitempty"`
	Truncated  bool            `json:"truncated,omitempty"`
	Retryable  bool            `json:"retryable"`
	FireTime   time.Time       `json:"fire_time"`
	StartedAt  *time.Time      `json:"started_at,omitempty"`
	FinishedAt time.Time       `json:"finished_at"`
}

// returned says what a handler's end means. What is too long is cut, and the cut marked.
func (r *Result) returned(output any, err error) {
	text, unwritable := json.Marshal(output)
	if err == nil {
		err = unwritable
	}
	if err == nil {
		r.Outcome, r.Output = "succeeded", text
		if r.Truncated = len(text) > maxOutput; r.Truncated {
			r.Output, _ = json.Marshal(cut(string(text), 30_000))
		}
		return
	}
	r.failed("handler_error", err.Error())
	r.Retryable = !errors.Is(err, ErrFatal) && !errors.Is(err, ErrBadParams)
	if errors.Is(err, ErrBadParams) {
		r.Code = "bad_params"
	}
}

func (r *Result) failed(code, message string) {
	r.Outcome, r.Code, r.Message, r.Truncated = "failed", code, cut(message, maxMessage), len(message) > maxMessage
}

func cut(text string, bytes int) string {
	return strings.ToValidUTF8(text[:min(len(text), bytes)], "")
}
