package uploadpack

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// dialect is how a client of version 0 or 1 talks.
type dialect struct {
	acks, sideband string // capabilities; "": none of the kind
	noDone         bool
	window         int    // haves between two flushes; 0: all
	end            string // the last word: "done", "flush" or nothing
	wantsLast      bool   // the other needs come before the wants
}

func randomDialect(rnd *rand.Rand) *dialect {
	d := &dialect{
		acks: pick(rnd, []string{"", "multi_ack", "multi_ack_detailed", "multi_ack_detailed",
			"multi_ack multi_ack_detailed"}),
		sideband: pick(rnd, []string{"", "side-band", "side-band-64k", "side-band-64k", "side-band-64k side-band"}),
		noDone:   chance(rnd, 40), end: pick(rnd, []string{"done", "done", "done", "flush", "flush", ""}),
		wantsLast: chance(rnd, 10),
	}
	if chance(rnd, 40) {
		d.window = 1 + rnd.IntN(4)
	}
	return d
}

func (d *dialect) String() string { return fmt.Sprintf("%+v", *d) }

// inWantLine are the arguments of version 2 that are capabilities in version 0.
var inWantLine = []string{"thin-pack", "ofs-delta", "include-tag", "no-progress", "deepen-relative"}

// needs is the first part of the request in version 0.
func (q *testRequest) needs(d *dialect, format git.ObjectFormat) []byte {
	features := strings.Fields(d.acks + " " + d.sideband + " agent=git/test object-format=" + format.String())
	if d.noDone {
		features = append(features, "no-done")
	}
	var wants, others []string
	for _, arg := range q.args {
		switch key, _, _ := strings.Cut(arg, " "); {
		case slices.Contains(inWantLine, arg):
			features = append(features, arg)
		case key == "want":
			wants = append(wants, arg)
		case key == "filter":
			others = append(others, arg)
			features = append(features, "filter")
		case key != "have" && key != "done":
			others = append(others, arg)
		}
	}
	if len(wants) > 0 {
		wants[0] += " " + strings.Join(features, " ")
	}
	lines := append(wants, others...)
	if d.wantsLast {
		lines = append(others, wants...)
	}
	return pktline.AppendFlush(appendLines(nil, lines))
}

func appendLines(b []byte, lines []string) []byte {
	for _, line := range lines {
		b = pktline.AppendLine(b, line)
	}
	return b
}

// havesOf lists what the client names.
func (q *testRequest) havesOf() (haves []string) {
	for _, arg := range q.args {
		if strings.HasPrefix(arg, "have ") {
			haves = append(haves, arg)
		}
	}
	return haves
}

// bytesV0 is the request in version 0 as the client says it in one breath.
func (q *testRequest) bytesV0(d *dialect, format git.ObjectFormat) []byte {
	b, haves := q.needs(d, format), q.havesOf()
	if d.window > 0 {
		for len(haves) > d.window {
			b = pktline.AppendFlush(appendLines(b, haves[:d.window]))
			haves = haves[d.window:]
		}
	}
	return d.last(appendLines(b, haves))
}

func (d *dialect) last(b []byte) []byte {
	switch d.end {
	case "done":
		return pktline.AppendLine(b, "done")
	case "flush":
		return pktline.AppendFlush(b)
	}
	return b
}

// parseAnswerV0 reads an answer in version 0. Its sections are named as in version 2.
func parseAnswerV0(b []byte, sideband string) (*answer, error) {
	a := &answer{lines: make(map[string][]string)}
	enter := func(section string) {
		if !slices.Contains(a.sections, section) {
			a.sections = append(a.sections, section)
		}
	}
	limit := pktline.MaxLine
	if sideband == "side-band" {
		limit = 1000
	}
	ended := false
	for len(b) > 0 {
		if sideband == "" && bytes.HasPrefix(b, []byte("PACK")) {
			a.sections, a.pack = append(a.sections, "packfile"), b
			return a, nil
		}
		t, payload, err := pktline.NewReader(bytes.NewReader(b)).Next()
		if err != nil {
			return a, err
		}
		b = b[4+len(payload):]
		switch {
		case ended:
			return a, errors.New("something follows the flush packet")
		case t == pktline.Flush && slices.Contains(a.sections, "packfile"):
			ended = true
		case t == pktline.Flush && !slices.Contains(a.sections, "acknowledgments"): // ends the shallow lines, if any
			enter("shallow-info")
		case t != pktline.Data || len(payload) == 0:
			return a, fmt.Errorf("unexpected %v packet", t)
		case sideband != "" && payload[0] <= 3:
			if len(payload)+4 > limit {
				return a, fmt.Errorf("a packet of %d bytes", len(payload)+4)
			}
			switch data := payload[1:]; pktline.Band(payload[0]) {
			case pktline.BandData:
				enter("packfile")
				a.pack = append(a.pack, data...)
			case pktline.BandProgress:
				a.progress += string(data)
			case pktline.BandError:
				a.bandError += string(data)
			}
		default:
			line := strings.TrimSuffix(string(payload), "\n")
			switch word, _, _ := strings.Cut(line, " "); word {
			case "shallow", "unshallow":
				enter("shallow-info")
				a.lines["shallow-info"] = append(a.lines["shallow-info"], line)
			case "ACK", "NAK":
				enter("acknowledgments")
				a.lines["acknowledgments"] = append(a.lines["acknowledgments"], line)
			default:
				return a, fmt.Errorf("unexpected line %q", line)
			}
		}
	}
	if slices.Contains(a.sections, "packfile") && !ended {
		return a, errors.New("the answer ends without a flush packet")
	}
	return a, nil
}

// forgetReady leaves only the common commits among the acknowledgments.
func (a *answer) forgetReady() {
	a.lines["acknowledgments"] = slices.DeleteFunc(a.lines["acknowledgments"], func(line string) bool {
		return !strings.HasSuffix(line, " common")
	})
}

// compareV0 asks both the same in version 0, once or in rounds as a client without state does.
func (s *testServer) compareV0(t *testing.T, server *Server, q *testRequest, d *dialect, rnd *rand.Rand,
	again bool) error {
	thorough := rnd.IntN(5) == 0
	session := node.Session{Version: pick(rnd, []protocol.Version{protocol.V0, protocol.V0, protocol.V1}),
		Stateless: chance(rnd, 75)}
	if len(q.havesOf()) == 0 || !session.Stateless || chance(rnd, 60) {
		_, err := s.compareRound(t, server, q, d, session, q.bytesV0(d, s.format), again, thorough)
		return err
	}
	// A client names more with every request, and repeats what was found to be common.
	needs, haves, common := q.needs(d, s.format), q.havesOf(), []string(nil)
	for len(haves) > 0 {
		n := min(1+rnd.IntN(4), len(haves))
		request := appendLines(appendLines(slices.Clone(needs), common), haves[:n])
		a, err := s.compareRound(t, server, q, d, session, pktline.AppendFlush(request), again, thorough)
		if err != nil || a == nil || slices.Contains(a.sections, "packfile") {
			return err
		}
		for _, have := range haves[:n] {
			id := strings.TrimPrefix(have, "have ")
			if slices.ContainsFunc(a.lines["acknowledgments"], func(ack string) bool {
				return strings.HasPrefix(ack, "ACK "+id) && !strings.HasSuffix(ack, "ready")
			}) {
				common = append(common, have)
			}
		}
		haves = haves[n:]
	}
	_, err := s.compareRound(t, server, q, d, session, pktline.AppendLine(appendLines(needs, common), "done"), again,
		thorough)
	return err
}

// compareRound compares one request's answers, and gives git's; nil if there was none.
func (s *testServer) compareRound(t *testing.T, server *Server, q *testRequest, d *dialect, session node.Session,
	request []byte,
	again, thorough bool) (*answer, error) {
	want, oracleFailed, stderr := s.oracleAs(t, session, request)
	response, outcome, err := s.serveAs(server, session, request)
	if again && err == nil {
		response, outcome, err = s.serveAs(server, session, request)
		if err == nil && outcome.Fetch.Pack != "" && outcome.Fetch.Pack != "hit" && outcome.Fetch.Pack != "follow" {
			return nil, fmt.Errorf("asked again, the pack was a %s", outcome.Fetch.Pack)
		}
	}
	if oracleFailed && err == nil && s.cutsOff(q) {
		return nil, nil // see compareFetch
	}
	if oracleFailed != (err != nil) {
		return nil, fmt.Errorf("git failed: %v; we: %v\n%s%.300q\n%q", oracleFailed, err, stderr, want, request)
	}
	if err != nil {
		return nil, nil
	}
	sideband := d.sideband
	if strings.HasPrefix(sideband, "side-band-64k") {
		sideband = "side-band-64k"
	}
	if len(q.wants(&answer{})) == 0 {
		sideband = ""
	}
	theirs, err := parseAnswerV0(want, sideband)
	if err != nil {
		return nil, fmt.Errorf("git's answer: %w\n%.300q", err, want)
	}
	ours, err := parseAnswerV0(response.Bytes(), sideband)
	if err != nil {
		return nil, fmt.Errorf("our answer: %w\n%.300q", err, response.Bytes())
	}
	if s.cutsOff(q) { // see compareFetch: what is "ready" depends on where history ends
		ours.forgetReady()
		theirs.forgetReady()
		if !slices.Equal(ours.sections, theirs.sections) {
			return nil, nil
		}
	}
	if a, b := ours.lines["acknowledgments"], theirs.lines["acknowledgments"]; !slices.Equal(a, b) {
		return nil, fmt.Errorf("acknowledgments: we say\n%q\ngit says\n%q\n%q", a, b, request)
	}
	if !slices.Equal(ours.sections, theirs.sections) {
		return nil, fmt.Errorf("we say %q, git %q", ours.sections, theirs.sections)
	}
	if s.shallow && !slices.Contains(ours.sections, "shallow-info") {
		// The client has learnt of our own boundary from the advertisement.
		for _, id := range s.boundary {
			ours.lines["shallow-info"] = append(ours.lines["shallow-info"], "shallow "+id)
		}
		theirs.lines["shallow-info"] = slices.Clone(ours.lines["shallow-info"])
	}
	acknowledged := theirs.lines["acknowledgments"]
	delete(ours.lines, "acknowledgments")
	delete(theirs.lines, "acknowledgments")
	err = s.compareFetch(t, q, ours, theirs, thorough)
	theirs.lines["acknowledgments"] = acknowledged
	return theirs, err
}
