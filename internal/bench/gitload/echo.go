package gitload

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// A small request beside a load waits for the server or for the machine. A bare echo between two processes that do
// nothing else, at the same rate and in the same run, shows the share of the machine.

// echoJob has the address of the echoing process.
type echoJob struct{ Socket string }

const (
	echoConns  = 4
	echoAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\necho\n"
)

// bareEcho is the echoing process. A nil *bareEcho measures nothing.
type bareEcho struct {
	process *loadgen.LoadProcess
	pings   *loadgen.Pings
}

// startEcho starts the echoing process. args are its arguments.
func startEcho(ctx context.Context, args []string) *bareEcho {
	t := &loadgen.Target{Scheme: "http", Host: "localhost", Socket: "@packhorse-bench-" + rand.Text()}
	process, err := loadgen.StartLoad(ctx, echoJob{t.Socket}, args)
	if err != nil {
		return nil
	}
	if err := process.Ready(ctx); err != nil {
		process.Kill()
		return nil
	}
	return &bareEcho{process, &loadgen.Pings{Target: t, Request: t.Get("/"), Conns: echoConns, Rate: loadgen.ProbeRate,
		Timeout: time.Minute, Urgent: true}}
}

// measure sends echoes for a duration, half a period after another generator at the same rate, because on few CPUs
// neither should wait for the other. begun receives the start of the other generator. wait waits for the end, or for
// that of ctx. Its result is nil if unknown.
func (e *bareEcho) measure(ctx context.Context, duration time.Duration,
	begun <-chan time.Time) (wait func() *loadgen.Percentiles) {
	if e == nil {
		return func() *loadgen.Percentiles { return nil }
	}
	e.pings.Duration = duration
	e.pings.StartAt = func() time.Time {
		const period = time.Second / loadgen.ProbeRate
		select {
		case at := <-begun:
			late := max(time.Since(at), 0)
			return at.Add(period/2 + (late/period+1)*period)
		case <-ctx.Done():
			return time.Now()
		}
	}
	result := make(chan *loadgen.Percentiles, 1)
	go func() {
		defer close(result)
		if out, err := e.pings.Run(ctx); err == nil && out.Failures.Count() == 0 && len(out.Latency) > 0 {
			figures := out.Latency.Summarize()
			result <- &figures
		}
	}()
	return func() *loadgen.Percentiles { return <-result }
}

func (e *bareEcho) kill() {
	if e != nil {
		e.process.Kill()
	}
}

func echoText(p *loadgen.Percentiles) string {
	if p == nil {
		return "unknown (needs Linux)"
	}
	return p.String()
}
