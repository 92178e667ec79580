// Taking work: a slot asks for one message, sees it through, asks for the next. So never more is
// asked for than there is room for, and nothing waits in memory while another executor idles.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

func (e *Executor) slot(consumer string) {
	for e.draining.Err() == nil {
		if msg, err := e.pull(consumer); err == nil {
			e.take(msg)
		} else {
			wait(e.draining, time.Second/2)
		}
	}
}

// pull waits for the next message. It is an error when the request ended without one, or when the
// server gave no sign of life for so long that the request must be lost.
func (e *Executor) pull(consumer string) (*nats.Msg, error) {
	inbox, err := e.nc.SubscribeSync(e.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	defer inbox.Unsubscribe()
	subject := fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s_DISPATCH_%s.%s", strings.ToUpper(e.Prefix), e.App, consumer)
	const ask = `{"batch": 1, "expires": 30000000000, "idle_heartbeat": 2000000000}` // nanoseconds
	if err := e.nc.PublishRequest(subject, inbox.Subject, []byte(ask)); err != nil {
		return nil, err
	}
	for waiting := e.draining; ; {
		ctx, cancel := context.WithTimeout(waiting, 6*time.Second)
		msg, err := inbox.NextMsgWithContext(ctx)
		cancel()
		switch {
		case err != nil && waiting.Err() != nil:
			waiting = context.Background()
			_ = inbox.Drain() // asks for nothing more, and gets what is on its way
		case err != nil:
			return nil, err
		case msg.Header.Get("Status") == "":
			return msg, nil
		case msg.Header.Get("Status") != "100":
			return nil, errors.New(msg.Header.Get("Description"))
		}
	}
}

// publish waits until a stream has stored it.
func (e *Executor) publish(msg *nats.Msg) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := e.js.PublishMsg(ctx, msg)
	return err
}

// answer sends +ACK, +WPI, -NAK or +TERM as a request: only its answer shows that the server has it.
func (e *Executor) answer(msg *nats.Msg, word string) error {
	reply, err := e.nc.Request(msg.Reply, []byte(word), 2*time.Second)
	if err == nil && len(reply.Data) > 0 && !strings.HasPrefix(string(reply.Data), "+OK") {
		err = fmt.Errorf("%s was refused: %s", word, reply.Data)
	}
	return err
}

// take sees one delivery through.
func (e *Executor) take(msg *nats.Msg) {
	about, err := msg.Metadata()
	if err != nil {
		return
	}
	ctx := &Context{Delivery: about.NumDelivered, executor: e, msg: msg}
	if json.Unmarshal(msg.Data, &ctx.Dispatch) != nil || ctx.Run == "" {
		log.Printf("a message that nobody can read is removed: %v", e.answer(msg, "+TERM"))
		return
	}
	key := fmt.Sprint(ctx.Run, ctx.Shard.Index, ctx.Attempt, ctx.Delivery)
	// The last delivery is begun even now: handed back, it would be lost without ever having run.
	if e.draining.Err() != nil && ctx.Delivery < ctx.MaxDeliveries {
		_ = e.answer(msg, "-NAK")
		return
	}
	ctx.Context, ctx.stop = context.WithCancelCause(context.Background())
	defer ctx.stop(nil)
	settled, settle := context.WithCancel(context.Background())
	defer settle()
	ctx.settled = settled
	e.mu.Lock()
	_, here := e.live[key]
	if !here {
		e.live[key] = ctx
	}
	e.mu.Unlock()
	if here {
		return // the server has forgotten that we have it
	}
	defer func() {
		settle()
		ctx.call.Wait() // a handler that does not stop keeps its slot until it does
		e.mu.Lock()
		delete(e.live, key)
		e.mu.Unlock()
	}()
	ctx.extended(time.Now())
	go ctx.keepLease()
	ctx.seeThrough()
}
