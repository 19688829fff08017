package balance

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

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

// play is a Core with a clock and names for its workers. Those that are no members any more stay known.
type play struct {
	*Core
	now     time.Duration
	members []*Worker
	known   map[string]*Worker
	running map[*Worker][]*Ticket
	down    map[string]bool
	usable  map[string]bool // of those that are down
}

func newPlay() *play {
	p := &play{known: map[string]*Worker{}, running: map[*Worker][]*Ticket{}, down: map[string]bool{}, usable: map[string]bool{}}
	p.Core = NewCore(Limits{}, func(*Ticket) {})
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
	p.members = p.Set(p.now, members)
	for i, worker := range p.members {
		p.known[members[i].Name] = worker
	}
}

// assign gives work to a member; nil: to none.
func (p *play) assign(tried []string) *Ticket {
	t, err := p.Enter(p.now, Work{Among: p.members, Tried: tried, NoWait: true})
	if err != nil {
		return nil
	}
	p.running[t.worker] = append(p.running[t.worker], t)
	return t
}

func (p *play) done(w *Worker, how Outcome) {
	t := p.running[w][0]
	p.running[w] = p.running[w][1:]
	p.Leave(p.now, t, how)
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
		if t := p.assign(args[min(1, len(args)):]); t == nil {
			fmt.Fprintln(out, "none")
		} else {
			fmt.Fprintf(out, "%s (%s)\n", t.worker.Name(), t.reason)
		}
	case "done":
		p.done(p.known[args[0]], OK)
	case "fail":
		p.done(p.known[args[0]], Failed)
	case "drain", "undrain":
		if err := p.Drain(p.now, args[0], command == "drain"); err != nil {
			fmt.Fprintf(out, "%s: %v\n", fault.KindOf(err), err)
		}
	case "down", "unready", "up":
		p.down[args[0]], p.usable[args[0]] = command != "up", command == "unready"
	case "pass":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			panic(err)
		}
		p.now += d
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
