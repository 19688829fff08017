package balance

import (
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

// TestTranscripts plays testdata: commands, a line "----", and what they print. Blocks are separated by empty lines; a
// line that begins with # is a comment.
//
//	members NAME[*WEIGHT][/SLOTS]...   who the workers are
//	limits [queue=N] [each=N] [wait=D]
//	work ID [for=CALLER] [on=SUBJECT] [among=NAME,NAME] [not=NAME,NAME] [check]
//	end ID, fail ID, cut ID    it ends well, by its worker's fault, or too early
//	assign [not NAME...]       work that does not wait for one of all members
//	order NAME,NAME            the same for the first of these that is ready
//	done NAME, fail NAME       the first of what was assigned ends
//	drain NAME, undrain NAME
//	down NAME, unready NAME, up NAME; changed
//	pass DURATION              let time pass
//	state                      print all members
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimPrefix(file, "testdata/"), func(t *testing.T) {
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

// play is a crowd with names for workers and work, also for removed workers.
type play struct {
	*crowd
	known map[string]*Worker
	has   map[*Worker][]*Ticket // what was assigned
	work  map[string]*Ticket
	ids   map[*Ticket]string
}

func newPlay() *play {
	return &play{crowd: newCrowd(Limits{}), known: map[string]*Worker{}, has: map[*Worker][]*Ticket{},
		work: map[string]*Ticket{}, ids: map[*Ticket]string{}}
}

func (p *play) set(members ...Member) {
	p.crowd.set(members...)
	for _, w := range p.workers {
		p.known[w.Name()] = w
	}
}

// named lists the workers of these names.
func (p *play) named(names string) (all []*Worker) {
	for name := range strings.SplitSeq(names, ",") {
		all = append(all, p.known[name])
	}
	return all
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
			members[i] = parseMember(arg)
		}
		p.set(members...)
	case "limits":
		var l Limits
		for _, arg := range args {
			key, value, _ := strings.Cut(arg, "=")
			switch key {
			case "wait":
				l.Wait = duration(value)
			default:
				*map[string]*int{"queue": &l.Queue, "each": &l.Each}[key] = number(value)
			}
		}
		p.Limit(p.now, l)
	case "work":
		p.begin(out, args[0], args[1:])
	case "assign", "order":
		work := Work{Among: p.workers, Tried: args[min(1, len(args)):], NoWait: true}
		if command == "order" {
			work = Work{Among: p.named(args[0]), Ordered: true, NoWait: true}
		}
		if t := p.enter(work); t == nil {
			fmt.Fprintln(out, "none")
		} else {
			p.has[t.worker] = append(p.has[t.worker], t)
			fmt.Fprintf(out, "%s (%s)\n", t.worker.Name(), t.reason)
		}
	case "done", "end", "fail", "cut":
		how := map[string]Outcome{"fail": Failed, "cut": Cut}[command]
		t := p.work[args[0]]
		if t == nil {
			w := p.known[args[0]]
			if len(p.has[w]) == 0 {
				panic("there is no " + args[0])
			}
			t, p.has[w] = p.has[w][0], p.has[w][1:]
		}
		p.leave(t, how)
	case "drain", "undrain":
		if err := p.Drain(p.now, args[0], command == "drain"); err != nil {
			fmt.Fprintf(out, "%s: %v\n", fault.KindOf(err), err)
		}
	case "down", "unready", "up":
		p.down[args[0]], p.usable[args[0]] = command != "up", command == "unready"
	case "changed":
		p.Wake(p.now)
	case "pass":
		p.pass(duration(args[0]))
	case "state":
		for _, w := range p.workers {
			fmt.Fprintln(out, describe(p.State(w)))
		}
	default:
		panic("unknown command " + command)
	}
	for _, t := range p.answered {
		p.tell(out, t)
	}
	p.settle()
	if p.err != "" {
		panic(p.err)
	}
}

func (p *play) begin(out *strings.Builder, id string, args []string) {
	var w Work
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "for":
			w.Caller = Caller(value)
		case "on":
			w.Subject = value
		case "among":
			w.Among = p.named(value)
		case "not":
			w.Tried = strings.Split(value, ",")
		case "check":
			w.Check = true
		}
	}
	t, err := p.Enter(p.now, w)
	if err != nil {
		fmt.Fprintf(out, "%s is refused: %s\n", id, fault.KindOf(err))
		return
	}
	p.work[id], p.ids[t] = t, id
	if t.worker == nil {
		p.waiting = append(p.waiting, t)
		fmt.Fprintf(out, "%s waits\n", id)
		return
	}
	p.running = append(p.running, t)
	p.assigned(t)
	p.tell(out, t)
}

func (p *play) tell(out *strings.Builder, t *Ticket) {
	if t.err != nil {
		fmt.Fprintf(out, "%s is refused: %s\n", p.ids[t], fault.KindOf(t.err))
		return
	}
	fmt.Fprintf(out, "%s at %s (%s)", p.ids[t], t.worker.Name(), t.reason)
	if t.Waited() > 0 {
		fmt.Fprintf(out, " after %v", t.Waited())
	}
	fmt.Fprintln(out)
}

func describe(s State) string {
	text := fmt.Sprintf("%s weight=%d in_flight=%d", s.Name, s.Weight, s.InFlight)
	if s.Slots > 0 {
		text += fmt.Sprintf(" used=%d/%d", s.Used, s.Slots)
	}
	if s.Draining {
		text += " draining"
	}
	if s.Down != nil {
		text += " down"
	}
	return text
}

func parseMember(text string) (m Member) {
	text, slots, ok := strings.Cut(text, "/")
	if ok {
		m.Slots = number(slots)
	}
	name, weight, ok := strings.Cut(text, "*")
	if m.Name = name; ok {
		m.Weight = number(weight)
	}
	return m
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
}
