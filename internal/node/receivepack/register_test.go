package receivepack

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// swap is a push that changes a ref from one value to another, or, if read is set, a read of the ref.
type swap struct {
	read     bool
	old, new string
}

// outcome is the result of a swap. If lost is set, no client received it.
type outcome struct {
	ok, lost bool
	value    string
}

// register is the specification of a ref. Pushes, kills and reads happen concurrently, and there must be an order in
// which each took place at one moment between its begin and its end. A push may be refused although its old value was
// right, since git holds a lock while another push runs.
var register = porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		s, in, out := state.(string), input.(swap), output.(outcome)
		switch {
		case in.read && out.value == s, !in.read && !out.ok && !out.lost:
			return []any{s}
		case in.read:
			return nil
		case out.lost && s == in.old:
			return []any{s, in.new}
		case out.lost:
			return []any{s}
		case s == in.old:
			return []any{in.new}
		}
		return nil
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
}

// TestRegister has several clients push to one ref, each from the value that it has read, while gits are killed.
// PACKHORSE_PUSHES is how many pushes; the default is a short run.
func TestRegister(t *testing.T) {
	t.Parallel()
	pushes, _ := strconv.Atoi(os.Getenv("PACKHORSE_PUSHES"))
	if pushes == 0 {
		pushes = 48
	}
	w := newWorld(t, Options{})
	r := w.open()
	read := func() string {
		snapshot, err := r.Refs.Snapshot(context.Background())
		if err != nil {
			t.Error(err)
			return ""
		}
		id, err := value(snapshot, "refs/heads/main")
		if err != nil {
			t.Error(err)
		}
		if id.IsZero() {
			return ""
		}
		return id.String()
	}
	var count atomic.Int64
	var killing sync.WaitGroup
	w.server.started = func(pid int) {
		if n := count.Add(1); n%3 == 0 {
			killing.Go(func() { time.Sleep(time.Duration(n%20) * time.Millisecond); _ = syscall.Kill(-pid, syscall.SIGKILL) })
		}
	}
	var mu sync.Mutex
	var history []porcupine.Operation
	start := time.Now()
	do := func(client int, in swap, op func() outcome) {
		call := time.Since(start).Nanoseconds()
		out := op()
		end := time.Since(start).Nanoseconds()
		if out.lost {
			end = 1 << 62 // it may come to be at any time
		}
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: end})
	}
	const clients = 4
	var all sync.WaitGroup
	for client := range clients {
		rnd := rand.New(rand.NewPCG(7, uint64(client)))
		source := w.clone()
		all.Go(func() {
			for i := range pushes / clients {
				old := ""
				do(client, swap{read: true}, func() outcome { old = read(); return outcome{value: old} })
				root := source.Commit(fmt.Sprintf("%d %d %d", client, i, rnd.Int64()))
				in := swap{old: old, new: root.String()}
				request := commands(reports, or(old, zeros(root))+" "+root.String()+" refs/heads/main") + packOf(t, source, root)
				do(client, in, func() outcome { return w.swap(request) })
			}
		})
	}
	all.Wait()
	killing.Wait()
	do(clients, swap{read: true}, func() outcome { return outcome{value: read()} })
	won, lost := 0, 0
	for _, o := range history {
		if out := o.Output.(outcome); out.lost {
			lost++
		} else if out.ok {
			won++
		}
	}
	t.Logf("%d of %d pushes changed the ref, %d were killed", won, pushes, lost)
	// A check that does not finish within the time is not a failure: the history is too tangled for this machine.
	result := porcupine.CheckOperationsTimeout(register.ToModel(), history, time.Minute)
	if result == porcupine.Illegal {
		for _, o := range history {
			t.Logf("%d %d-%d %+v %+v", o.ClientId, o.Call, o.Return, o.Input, o.Output)
		}
		t.Error("there is no order in which these pushes and reads can have taken place")
	}
	w.clean()
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// swap pushes and returns the result that the client sees.
func (w *world) swap(request string) outcome {
	got, err := w.post(request)
	switch {
	case err != nil:
		return outcome{lost: true}
	case strings.Contains(got, "ok refs/heads/main"):
		return outcome{ok: true}
	}
	return outcome{}
}
