package loadgen

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"time"
)

// Pings sends one small request again and again and compares every answer with the first.
type Pings struct {
	Target  *Target
	Request []byte
	Want    []byte // the body that every answer has to have
	Conns   int
	// requests a second in all, due at fixed times (open loop); zero: each connection asks as soon as it can
	Rate     float64
	Duration time.Duration
	Timeout  time.Duration
	Urgent   bool             // run the generator at a higher priority, where that is permitted
	StartAt  func() time.Time // when a run begins, asked once its connections are made; nil: then
}

// verify compares a complete answer. An answer that is wrong leaves the connection fit for use.
func (p *Pings) verify(x *Exchange) error {
	if err := CheckStatus(x); err != nil {
		return err
	}
	if p.Want != nil && !bytes.Equal(x.Body, p.Want) {
		return &HTTPError{Status: 200, Text: fmt.Sprintf("an answer of %d bytes differs from the first one of %d",
			len(x.Body), len(p.Want))}
	}
	return nil
}

// Run asks for the duration.
func (p *Pings) Run(ctx context.Context) (*Outcome, error) {
	s := &Sender{Target: p.Target, Requests: [][]byte{p.Request}, Open: p.Rate > 0, Arrivals: FixedRate(cmp.Or(p.Rate, 1)),
		Conns: p.Conns, Connect: true, Keep: true,
		Duration: p.Duration, Timeout: p.Timeout, Pause: RetryAfter, Urgent: p.Urgent, StartAt: p.StartAt, Check: p.verify}
	sent, err := s.Run(ctx)
	if err != nil {
		return nil, err
	}
	out := &Outcome{Requests: len(sent.Answers), Bytes: sent.Bytes, Elapsed: sent.Elapsed, Began: sent.Began,
		Failures: sent.Failures, Urgent: sent.Urgent}
	for _, a := range sent.Answers {
		out.Latency = append(out.Latency, a.Took)
		if p.Rate > 0 {
			out.Timed = append(out.Timed, Answered{a.Due, a.Took})
		}
	}
	return out, nil
}

// First asks once and returns the answer's body.
func (p *Pings) First(ctx context.Context) ([]byte, error) {
	var body []byte
	keep := func(x *Exchange) error {
		body = bytes.Clone(x.Body)
		return p.verify(x)
	}
	s := &Sender{Target: p.Target, Requests: [][]byte{p.Request}, Arrivals: FixedRate(1), Conns: 1, Count: 1,
		Timeout: p.Timeout, Check: keep}
	sent, err := s.Run(ctx)
	if err != nil {
		return nil, err
	}
	return body, sent.Failures.only()
}

const (
	// ProbeRate is how many small requests a second are sent beside a load: enough for a p99 in half a minute, too few to
	// be a load themselves.
	ProbeRate = 50
	// ProbeConns is on how many connections: a late answer does not delay the next request.
	ProbeConns = 16

	// LoadNice is the priority of a load, and UrgentNice that of the small requests beside it. Clients are other machines
	// in real life. Here they share the CPUs with the server, and without priorities a small request waits behind the
	// receiving end of the clones. Measured on two CPUs with a plain sendfile server and 30 clones at full speed, medians
	// of three runs: p50 with clones in the same process 10 ms; in a child process 9 ms; in a child at nice 5 4 ms; always
	// at 8 to 9 GB/s.
	LoadNice, UrgentNice = 5, -5
)
