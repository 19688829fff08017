package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// registerRefs is the number of refs that are registers.
const registerRefs = 3

func refName(ref int) string { return fmt.Sprintf("refs/heads/r%d", ref) }

// action is an operation of a client on one ref: a read, or a change from old to new. An empty value means that the ref
// does not exist.
type action struct {
	ref      int
	read     bool
	old, new string
}

// result is the result of an action.
type result struct {
	kind  outcome
	value string // of a read
}

type outcome int

const (
	done    outcome = iota
	refused         // by the server: nothing was changed
	stale           // by the client: the advertised value is another one
	unknown         // the client got no result
)

func (o outcome) String() string { return [...]string{"done", "refused", "stale", "unknown"}[o] }

// registerModel describes which values of refs clients may see.
var registerModel = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byRef := map[int][]porcupine.Operation{}
		for _, op := range history {
			ref := op.Input.(action).ref
			byRef[ref] = append(byRef[ref], op)
		}
		return slices.Collect(maps.Values(byRef))
	},
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		is, in, out := state.(string), input.(action), output.(result)
		switch {
		case in.read:
			if is == out.value {
				return []any{is}
			}
		case out.kind == done:
			if is == in.old {
				return []any{in.new}
			}
		case out.kind == refused:
			return []any{is}
		case out.kind == stale:
			if is != in.old {
				return []any{is}
			}
		case is == in.old: // unknown
			return []any{is, in.new}
		default:
			return []any{is}
		}
		return nil
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(action), output.(result)
		if in.read {
			return fmt.Sprintf("r%d is %.7s", in.ref, out.value)
		}
		return fmt.Sprintf("r%d: %.7s for %.7s: %s", in.ref, in.new, in.old, out.kind)
	},
}).ToModel()

// checkLinearizable checks that clients of registers can have seen what they saw. A history can be too tangled to
// decide.
func checkLinearizable(t *testing.T, history []porcupine.Operation) {
	t.Helper()
	verdict := porcupine.CheckOperationsTimeout(registerModel, history, 2*time.Minute)
	t.Logf("linearizable: %s", verdict)
	if verdict == porcupine.Illegal {
		_, info := porcupine.CheckOperationsVerbose(registerModel, history, time.Minute)
		page := filepath.Join(os.TempDir(), fmt.Sprintf("packhorse-history-%d.html", os.Getpid()))
		t.Errorf("what clients saw cannot be; %s shows it (%v)", page, porcupine.VisualizePath(registerModel, info, page))
	}
}

// clientGit runs git in a directory, as a client that sends a header.
func clientGit(t *testing.T, header, dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "http.extraHeader=" + header}, args...)...)
	cmd.Dir, cmd.Env = dir, gittest.Env()
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Errorf("git %q does not end: %s", args, out)
	}
	return string(out), err
}

// pushArgs returns the arguments for git to push updates, if the refs have their old values.
func pushArgs(url string, atomic bool, updates []action) []string {
	args := []string{"push", "--porcelain"}
	if atomic {
		args = append(args, "--atomic")
	}
	for _, do := range updates {
		args = append(args, fmt.Sprintf("--force-with-lease=%s:%s", refName(do.ref), do.old))
	}
	args = append(args, url)
	for _, do := range updates {
		args = append(args, do.new+":"+refName(do.ref))
	}
	return args
}

// pushResult returns the result of a push for one ref, from the output of git (git-push(1), "OUTPUT").
func pushResult(out, ref string, failed error) (outcome, error) {
	for line := range strings.Lines(out) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) < 3 || !strings.HasSuffix(fields[1], ":"+ref) {
			continue
		}
		switch {
		case strings.Contains(" +-*", fields[0]):
			return done, nil
		case strings.HasPrefix(fields[2], "[rejected] (stale info)"):
			return stale, nil
		case strings.HasPrefix(fields[2], "[rejected]"), strings.HasPrefix(fields[2], "[remote rejected]"):
			return refused, nil
		case strings.HasPrefix(fields[2], "[remote failure]"):
			return unknown, nil
		}
		return unknown, fmt.Errorf("git says of a push: %s", line)
	}
	switch {
	case failed == nil:
		return unknown, fmt.Errorf("git says of a push that it is done, and nothing of %s: %s", ref, out)
	case strings.Contains(out, "fatal: unable to access"): // it did not get beyond the advertisement
		return refused, nil
	}
	return unknown, nil
}

// listedRefs returns the values of refs from the output of git ls-remote.
func listedRefs(out string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(out) {
		id, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		values[name] = id
	}
	return values
}
