package balance

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
)

var update = flag.Bool("update", false, "write what happens into the transcripts")

// TestTranscripts plays testdata/workers: commands, a line "----", and what they print. Blocks are separated by empty lines; a line
// that begins with # is a comment.
//
//	members NAME[*WEIGHT]...   who the workers are
//	assign [not NAME...]       assign one piece of work to one of all members
//	done NAME, fail NAME       a piece of work ends well, or by the worker's fault
//	drain NAME, undrain NAME
//	down NAME, unready NAME, up NAME
//	pass DURATION              let time pass
//	state                      print all members
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/workers/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p := newPlay()
			var out []string
			for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
				commands, _, ok := strings.Cut(block+"\n", "----\n")
				if !ok && !strings.HasPrefix(block, "#") {
					t.Fatalf("a block without ----:\n%s", block)
				}
				if ok {
					block = commands + "----\n" + p.run(commands)
				}
				out = append(out, strings.TrimSpace(block))
			}
			got := strings.Join(out, "\n\n") + "\n"
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s happens otherwise (go test -run Transcripts -update writes it):\n%s", file, got)
			}
		})
	}
}

// play is a Workers with a clock and names for its workers. Those that are no members any more stay known.
type play struct {
	*Workers
	clock   time.Time
	members []*Worker
	known   map[string]*Worker
	down    map[string]bool
	usable  map[string]bool // of those that are down
}

func newPlay() *play {
	p := &play{clock: time.Unix(0, 0), known: map[string]*Worker{}, down: map[string]bool{}, usable: map[string]bool{}}
	p.Workers = NewWorkers(func() time.Time { return p.clock })
	return p
}

func (p *play) set(members ...Member) {
	for i, m := range members {
		members[i].Ready = func() error {
			if p.down[m.Name] {
				return errors.New("down")
			}
			return nil
		}
		members[i].Usable = func() bool { return p.usable[m.Name] }
	}
	p.members = p.Set(members)
	for i, worker := range p.members {
		p.known[members[i].Name] = worker
	}
}

func (p *play) run(commands string) string {
	var out strings.Builder
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		p.command(&out, words[0], words[1:])
	}
	return out.String()
}

func (p *play) command(out *strings.Builder, command string, args []string) {
	switch command {
	case "members":
		members := make([]Member, len(args))
		for i, arg := range args {
			name, weight, _ := strings.Cut(arg, "*")
			n, _ := strconv.Atoi(weight)
			members[i] = Member{Name: name, Weight: n}
		}
		p.set(members...)
	case "assign":
		if i, reason := p.Assign(p.members, args[min(1, len(args)):]); i < 0 {
			fmt.Fprintln(out, "none")
		} else {
			fmt.Fprintf(out, "%s (%s)\n", p.members[i].name, reason)
		}
	case "done", "fail":
		p.Done(p.known[args[0]], command == "fail")
	case "drain", "undrain":
		if err := p.Drain(args[0], command == "drain"); err != nil {
			fmt.Fprintf(out, "%s: %v\n", fault.KindOf(err), err)
		}
	case "down", "unready", "up":
		p.down[args[0]], p.usable[args[0]] = command != "up", command == "unready"
	case "pass":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			panic(err)
		}
		p.clock = p.clock.Add(d)
	case "state":
		for _, worker := range p.members {
			s := p.State(worker)
			fmt.Fprintf(out, "%s weight=%d in_flight=%d", s.Name, s.Weight, s.InFlight)
			if s.Draining {
				fmt.Fprint(out, " draining")
			}
			if s.Down != nil {
				fmt.Fprint(out, " down")
			}
			fmt.Fprintln(out)
		}
	default:
		panic("unknown command " + command)
	}
}

// TestWorkers lets random things happen, and holds each assignment to the rules.
func TestWorkers(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "d", "e"}
	rapid.Check(t, func(t *rapid.T) {
		p := newPlay()
		p.set(Member{Name: "a"})
		var running []*Worker
		passedOver := map[*Worker]int{} // assignments that a worker could have had while it was free and the members were the same
		able := func(w *Worker, tried []string) bool {
			return !w.draining && (!p.down[w.name] || p.usable[w.name]) && !slices.Contains(tried, w.name)
		}
		t.Repeat(map[string]func(*rapid.T){
			"assign": func(t *rapid.T) {
				tried := rapid.SliceOfN(rapid.SampledFrom(names), 0, 2).Draw(t, "tried")
				var could []*Worker
				for _, w := range p.members {
					if able(w, tried) {
						could = append(could, w)
					}
				}
				turn := p.turn
				i, reason := p.Assign(p.members, tried)
				if i < 0 {
					if len(could) > 0 || p.turn != turn {
						t.Fatalf("nobody, though %s could", could[0].name)
					}
					return
				}
				w := p.members[i]
				checkAssignment(t, p, w, could, reason)
				running = append(running, w)
				for _, other := range could {
					if other.inFlight > 0 {
						passedOver[other] = 0
					} else if !p.clock.Before(other.rests) && !p.down[other.name] {
						passedOver[other]++
					}
					if passedOver[other] >= len(p.members) { // every other one had its turn
						t.Fatalf("%s is free, and starves", other.name)
					}
				}
			},
			"done": func(t *rapid.T) {
				if len(running) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				w := running[i]
				running = slices.Delete(running, i, i+1)
				before := w.inFlight
				failed := rapid.Bool().Draw(t, "failed")
				p.Done(w, failed)
				if w.inFlight != before-1 || failed && !p.clock.Before(w.rests) {
					t.Fatalf("%s: %d in flight after %d", w.name, w.inFlight, before)
				}
			},
			"members": func(t *rapid.T) {
				var members []Member
				for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(t, "names") {
					members = append(members, Member{Name: name, Weight: rapid.IntRange(-1, 5).Draw(t, "weight")})
				}
				clear(passedOver)
				before := p.members
				p.set(members...)
				for _, old := range before {
					i := slices.IndexFunc(members, func(m Member) bool { return m.Name == old.name })
					if i >= 0 && p.members[i] != old {
						t.Fatalf("%s stays, and is forgotten", old.name)
					}
				}
			},
			"drain": func(t *rapid.T) {
				name := rapid.SampledFrom(names).Draw(t, "name")
				err := p.Drain(name, rapid.Bool().Draw(t, "draining"))
				member := slices.ContainsFunc(p.members, func(w *Worker) bool { return w.name == name })
				if (err == nil) != member || err != nil && !fault.Is(err, fault.NotFound) {
					t.Fatalf("drain %s: %v", name, err)
				}
			},
			"down": func(t *rapid.T) {
				name := rapid.SampledFrom(names).Draw(t, "name")
				p.down[name], p.usable[name] = rapid.Bool().Draw(t, "down"), rapid.Bool().Draw(t, "usable")
			},
			"pass": func(t *rapid.T) {
				p.clock = p.clock.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				count := map[*Worker]int64{}
				for _, w := range running {
					count[w]++
				}
				for _, w := range p.known {
					if w.inFlight != count[w] {
						t.Fatalf("%s has %d in flight, counted are %d", w.name, count[w], w.inFlight)
					}
				}
			},
		})
	})
}

// checkAssignment compares who was given work, and has it now, with all who could have been.
func checkAssignment(t *rapid.T, p *play, w *Worker, could []*Worker, reason Reason) {
	if !slices.Contains(could, w) {
		t.Fatalf("%s is draining, down or excluded", w.name)
	}
	had := w.inFlight - 1
	for _, other := range could {
		if other == w || p.down[other.name] || p.clock.Before(other.rests) {
			continue
		}
		switch {
		case p.down[w.name]:
			t.Fatalf("%s is not ready, and %s is", w.name, other.name)
		case p.clock.Before(w.rests):
			t.Fatalf("%s has just failed, and %s has not", w.name, other.name)
		case had > 0 && other.inFlight == 0:
			t.Fatalf("%s is busy, and %s is free", w.name, other.name)
		case had*other.weight > other.inFlight*w.weight:
			t.Fatalf("%s is busier than %s", w.name, other.name)
		}
	}
	want := LeastBusy
	if len(could) == 1 {
		want = Only
	} else if had == 0 {
		want = Free
	}
	if reason != want {
		t.Fatalf("%s because %s, want %s", w.name, reason, want)
	}
}

// TestWorkersAtOnce changes everything while work is assigned: counts come out even.
func TestWorkersAtOnce(t *testing.T) {
	t.Parallel()
	w := NewWorkers(nil)
	members := []Member{{Name: "a"}, {Name: "b", Weight: 3}, {Name: "c"}}
	all := w.Set(members)
	stop := make(chan struct{})
	var changes, work sync.WaitGroup
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			w.Set(members[:1+i%3])
			_ = w.Drain("b", i%2 == 0)
			_ = w.State(all[0])
		}
	})
	for range 8 {
		work.Go(func() {
			for i := range 2000 {
				if n, _ := w.Assign(all, nil); n >= 0 {
					w.Done(all[n], i%7 == 0)
				}
			}
		})
	}
	work.Wait()
	close(stop)
	changes.Wait()
	for _, worker := range all {
		if s := w.State(worker); s.InFlight != 0 {
			t.Errorf("%s has %d in flight at the end", s.Name, s.InFlight)
		}
	}
}

func BenchmarkAssign(b *testing.B) {
	for _, n := range []int{1, 3, 100} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			w := NewWorkers(nil)
			members := make([]Member, n)
			for i := range members {
				members[i] = Member{Name: strconv.Itoa(i), Ready: func() error { return nil }}
			}
			all := w.Set(members)
			b.ReportAllocs()
			for b.Loop() {
				i, _ := w.Assign(all, nil)
				w.Done(all[i], false)
			}
		})
	}
}
