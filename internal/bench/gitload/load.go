package gitload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git"
)

// LoadJob is the job of the child process of `packhorse-bench neighbour`. It comes on standard input, because the
// requests contain credentials, which must not be visible as arguments.
type LoadJob struct {
	URL      string // without user and password
	Auth     string
	Insecure bool
	Clients  int
	Timeout  time.Duration
	// BytesPerS is the pace of all clients together in bytes per second. Zero means no limit.
	BytesPerS float64
	// Rate is the rate of all clients together in requests per second, due at fixed times. Zero is a closed loop.
	Rate float64

	// A warm load replays one request.
	Request    []byte
	Size, Tail int64 // the layout of the verified response

	// A cold load makes its own requests.
	Format string
	Tips   []string
	Seed   uint64
}

func NewLoadJob(t *loadgen.Target) *LoadJob {
	return &LoadJob{URL: t.String(), Auth: t.Auth, Insecure: t.TLS != nil && t.TLS.InsecureSkipVerify}
}

// Cold makes the job a cold load: clones of a repository with these refs that are in no cache.
func (j *LoadJob) Cold(refs *refList) error {
	j.Format, j.Tips, j.Seed = refs.format.String(), coldTips(refs.Refs), uint64(time.Now().UnixNano())
	if len(j.Tips) == 0 {
		return errors.New("the repository has no branches, tags or pull requests to clone")
	}
	return nil
}

// LoadCommand is the child of `packhorse-bench neighbour`. It reads a job from standard input and works until standard
// input is closed, which also happens when its parent dies.
func LoadCommand(env loadgen.Env) *cobra.Command {
	return &cobra.Command{
		Use:    "load",
		Short:  "The clones of \"packhorse-bench neighbour\"",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loadgen.Yielding()
			var job LoadJob
			in, err := loadgen.ReadJob(cmd, &job)
			if err != nil {
				return err
			}
			stop := make(chan struct{})
			go func() { // ends with the process: reads of standard input cannot be interrupted
				defer close(stop)
				io.Copy(io.Discard, in) //nolint:errcheck // any end is the end
			}()
			result, err := job.run(cmd.Context(), stop, func() { fmt.Fprintln(env.Stdout, loadgen.LoadReady) })
			if err != nil {
				return err
			}
			return json.NewEncoder(env.Stdout).Encode(result)
		},
	}
}

// run runs the job.
func (j *LoadJob) run(ctx context.Context, stop <-chan struct{}, flowing func()) (*loadgen.LoadResult, error) {
	t, err := loadgen.ParseTarget(j.URL, j.Insecure)
	if err != nil {
		return nil, err
	}
	t.Auth = j.Auth
	r := &loadgen.Replay{Target: t, Clients: j.Clients, Timeout: j.Timeout, Flowing: flowing, Rate: j.Rate,
		Pace: j.BytesPerS / float64(max(j.Clients, 1))}
	var ref *Reference
	var cold *shapes
	if len(j.Tips) > 0 {
		format, err := git.ParseObjectFormat(j.Format)
		if err != nil {
			return nil, err
		}
		cold = newShapes(t, format, j.Tips, j.Seed)
		r.Next = cold.next
	} else {
		ref = &Reference{Size: j.Size, tail: j.Tail}
		r.Next = func() []byte { return j.Request }
	}
	r.Check = FetchChecker(ref)
	out, err := r.Run(ctx, stop)
	if err != nil {
		return nil, err
	}
	return &loadgen.LoadResult{Bytes: out.Bytes, Elapsed: out.Elapsed, Requests: out.Requests,
		Errors: out.Failures.Count(), First: out.Failures.First, Exhausted: cold != nil && cold.exhausted}, nil
}
