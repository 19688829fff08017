package bench

import (
	"context"
	"crypto/rand"
	"time"
)

// What a small request waits for beside a load is the server's doing or the machine's: a bare echo between two processes that do nothing else, at the same
// rate and in the same run, tells how much is the machine's.

// echoJob says where the process that answers listens.
type echoJob struct{ Socket string }

const (
	echoConns  = 4
	echoAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\necho\n"
)

// bareEcho is the process that answers. Nil: there is none.
type bareEcho struct {
	process *loadProcess
	pings   *pings
}

// startEcho starts the process that answers. args are those of the program that does.
func startEcho(ctx context.Context, args []string) *bareEcho {
	t := &target{scheme: "http", host: "localhost", socket: "@packhorse-bench-" + rand.Text()}
	process, err := startLoad(ctx, echoJob{t.socket}, args)
	if err != nil {
		return nil
	}
	if err := process.ready(ctx); err != nil {
		process.kill()
		return nil
	}
	return &bareEcho{process, &pings{target: t, request: t.get("/"), conns: echoConns, rate: probeRate, timeout: time.Minute, urgent: true}}
}

// measure asks for a duration, half a period after another generator at the same rate: on few CPUs neither is to wait for the other. begun tells when that
// one began. wait is for the end, or that of ctx; nil: not known.
func (e *bareEcho) measure(ctx context.Context, duration time.Duration, begun <-chan time.Time) (wait func() *percentiles) {
	if e == nil {
		return func() *percentiles { return nil }
	}
	e.pings.duration = duration
	e.pings.startAt = func() time.Time {
		const period = time.Second / probeRate
		select {
		case at := <-begun:
			late := max(time.Since(at), 0)
			return at.Add(period/2 + (late/period+1)*period)
		case <-ctx.Done():
			return time.Now()
		}
	}
	result := make(chan *percentiles, 1)
	go func() {
		defer close(result)
		if out, err := e.pings.run(ctx); err == nil && out.failures.count() == 0 && len(out.latency) > 0 {
			figures := out.latency.summarize()
			result <- &figures
		}
	}()
	return func() *percentiles { return <-result }
}

func (e *bareEcho) kill() {
	if e != nil {
		e.process.kill()
	}
}

func echoText(p *percentiles) string {
	if p == nil {
		return "is not known (Linux)"
	}
	return p.String()
}
