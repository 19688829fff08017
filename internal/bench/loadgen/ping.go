package loadgen

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"time"
)

// Pings sends one small request repeatedly and compares every response with the first.
type Pings struct {
	Target  *Target
	Request []byte
	Want    []byte // the expected body of every response
	Conns   int
	// Rate is in requests per second on all connections, due at fixed times (open loop). Zero is a closed loop.
	Rate     float64
	Duration time.Duration
	Timeout  time.Duration
	Urgent   bool // run the generator at a higher priority, if that is permitted
}

// verify compares a complete response. A wrong response leaves the connection usable.
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

// Run sends requests for the duration.
func (p *Pings) Run(ctx context.Context) (*Outcome, error) {
	s := &Sender{Target: p.Target, Requests: [][]byte{p.Request}, Open: p.Rate > 0, Arrivals: FixedRate(cmp.Or(p.Rate, 1)),
		Conns: p.Conns, Connect: true, Keep: true,
		Duration: p.Duration, Timeout: p.Timeout, Pause: RetryAfter, Urgent: p.Urgent, Check: p.verify}
	sent, err := s.Run(ctx)
	if err != nil {
		return nil, err
	}
	out := &Outcome{Requests: len(sent.Answers), Bytes: sent.Bytes, Elapsed: sent.Elapsed,
		Failures: sent.Failures, Urgent: sent.Urgent}
	for _, a := range sent.Answers {
		out.Latency = append(out.Latency, a.Took)
	}
	return out, nil
}

// First sends one request and returns the body of the response.
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
	// ProbeRate is the rate of small requests beside a load, in requests per second. It is enough for a p99 in half a
	// minute, and too low to be a load itself.
	ProbeRate = 50
	// ProbeConns is the number of connections of small requests. A late response does not delay the next request.
	ProbeConns = 16

	// LoadNice is the priority of a load, and UrgentNice that of the small requests beside it. In practice clients run
	// on other machines. Here they share the CPUs with the server, and without priorities a small request waits for the
	// receivers of the clones. Measured on two CPUs with a plain sendfile server and 30 clones at full speed, always at
	// 8 to 9 GB/s. The p50 is 10 ms with clones in the same process, 9 ms with clones in a child process, and 4 ms with
	// a child at nice 5.
	LoadNice, UrgentNice = 5, -5
)
