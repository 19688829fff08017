package receivepack

import (
	"bytes"
	"cmp"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
)

// report is Git's report about a push (gitprotocol-pack(5), "Report Status").
type report struct {
	unpack   string                 // "ok", or why the pack was not accepted; "": the report has no such line
	refused  map[string]string      // why a ref was not changed
	changed  map[string][]refResult // the changes made for each ref of the request
	complete bool                   // the report ends with a flush packet
}

// refResult is one change in a report. A proc-receive hook can change another ref, or change it to another value. Empty
// fields are as requested.
type refResult struct{ ref, old, new string }

// apply returns the update that was made for a requested one.
func (r refResult) apply(u Update, format git.ObjectFormat) Update {
	if ref, err := git.ParseRefName(r.ref); err == nil {
		u.Ref = ref
	}
	if id, err := git.ParseObjectID(r.old); err == nil && id.Format() == format {
		u.Old = id
	}
	if id, err := git.ParseObjectID(r.new); err == nil && id.Format() == format {
		u.New = id
	}
	return u
}

// readReport reads a report, which may be incomplete.
func readReport(b []byte) report {
	rep := report{refused: make(map[string]string), changed: make(map[string][]refResult)}
	packets := pktline.NewReader(bytes.NewReader(b))
	last := "" // the ref that option lines belong to
	for {
		kind, line, err := packets.Line()
		if err != nil {
			return rep
		}
		if kind != pktline.Data {
			rep.complete = true
			return rep
		}
		word, rest, _ := strings.Cut(string(line), " ")
		switch word {
		case "unpack":
			rep.unpack = rest
		case "ok":
			last = rest
			rep.changed[last] = append(rep.changed[last], refResult{})
		case "ng":
			name, why, _ := strings.Cut(rest, " ")
			last, rep.refused[name] = "", cmp.Or(why, "refused")
		case "option":
			if results := rep.changed[last]; len(results) > 0 {
				results[len(results)-1].readOption(rest)
			}
		}
	}
}

func (r *refResult) readOption(text string) {
	switch name, value, _ := strings.Cut(text, " "); name {
	case "refname":
		r.ref = value
	case "old-oid":
		r.old = value
	case "new-oid":
		r.new = value
	}
}

// editReport returns a report with the lines that edit returns for each line. It leaves out lines for which that is "".
func editReport(report []byte, edit func(line string) string) []byte {
	edited := make([]byte, 0, len(report))
	packets := pktline.NewReader(bytes.NewReader(report))
	for {
		kind, data, err := packets.Next()
		if err != nil {
			return edited
		}
		if kind != pktline.Data {
			edited = pktline.AppendFlush(edited)
		} else if line := edit(strings.TrimSuffix(string(data), "\n")); line != "" {
			edited = pktline.Append(edited, []byte(line+"\n"))
		}
	}
}

// refuseInReport returns a report in which lines "ok REF" are replaced by "ng REF REASON", and their options removed.
// The reasons are by ref, one for each such line; "" leaves the line as it is.
func refuseInReport(report []byte, reasons map[string][]string) []byte {
	dropsOptions := false
	return editReport(report, func(line string) string {
		word, rest, _ := strings.Cut(line, " ")
		if word == "option" && dropsOptions {
			return ""
		}
		dropsOptions = false
		if word == "ok" && len(reasons[rest]) > 0 {
			reason := reasons[rest][0]
			reasons[rest] = reasons[rest][1:]
			if dropsOptions = reason != ""; dropsOptions {
				return "ng " + rest + " " + reason
			}
		}
		return line
	})
}

// renameReason returns a report in which refs were refused for another reason.
func renameReason(report []byte, old, reason string) []byte {
	return editReport(report, func(line string) string {
		if name, isRefused := strings.CutSuffix(line, " "+old); isRefused {
			return name + " " + reason
		}
		return line
	})
}

// setResults fills in the outcome of each ref. updates are those that were made, if that is known.
func (p *pushSession) setResults(updates []Update, isKnown bool) {
	changed := make(map[git.RefName]bool, len(updates))
	for _, u := range updates {
		changed[u.Ref] = true
	}
	list := make([]node.RefUpdate, 0, len(p.request.commands))
	for _, c := range p.request.commands {
		u := node.RefUpdate{Ref: c.name, Old: c.old, New: c.new}
		reason, isRefused := p.report.refused[c.name]
		switch {
		case isKnown && len(p.report.changed[c.name]) > 0:
			for _, r := range p.report.changed[c.name] {
				made := r.apply(Update{Ref: git.RefName(c.name), Old: c.old, New: c.new}, p.target.Format)
				list = append(list, node.RefUpdate{Ref: string(made.Ref), Old: made.Old, New: made.New, Result: node.UpdateOK})
			}
			continue
		case changed[git.RefName(c.name)]:
			u.Result = node.UpdateOK
		case isRefused:
			u.Result = clean(reason, maxReason)
		case isKnown:
			u.Result = node.UpdateUnchanged
		default:
			u.Result = node.UpdateUnknown
		}
		list = append(list, u)
	}
	p.outcome.Push.Updates = list
}

// maxReason is the maximum length in bytes of Git's reason for a ref.
const maxReason = 200

// clean shortens a text and replaces control characters.
func clean(s string, limit int) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s[:min(len(s), limit)])
}
