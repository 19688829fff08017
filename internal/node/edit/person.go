package edit

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Person is the author or the committer of a commit in a request.
type Person struct {
	Name, Email string // both "": those of someone else
	Date        string // RFC 3339, or "SECONDS OFFSET"; "": that of someone else
	Raw         []byte // the line of the commit without its keyword, instead of the other fields
}

// transport is the transport of the e-mail addresses of actors.
const transport = "api"

// Lines returns the lines of the author and of the committer. An empty author is the actor, an empty committer the
// author. A Person with only a date has the name of that one.
func Lines(author, committer Person, actor node.Pusher, now time.Time) (authorLine, committerLine string, err error) {
	name, email := receivepack.Identity(actor, transport)
	authorLine, err = author.line("author", name+" <"+email+">", strconv.FormatInt(now.Unix(), 10)+" +0000")
	if err != nil {
		return "", "", err
	}
	end := strings.LastIndex(authorLine, "> ") + 1
	committerLine, err = committer.line("committer", authorLine[:end], authorLine[end+1:])
	return authorLine, committerLine, err
}

// line returns the line of a Person. Identity and date are used if it has none.
func (p Person) line(field, identity, date string) (string, error) {
	if len(p.Raw) > 0 {
		if p.Name != "" || p.Email != "" || p.Date != "" {
			return "", fault.InField(field+".raw", fault.New(fault.Invalid, "set either raw or the other fields"))
		}
		return string(p.Raw), fault.InField(field+".raw", checkLine(p.Raw))
	}
	if p.Name != "" || p.Email != "" {
		name, err := clean(field+".name", p.Name)
		if err != nil {
			return "", err
		}
		email, err := clean(field+".email", p.Email)
		if err != nil {
			return "", err
		}
		if name == "" {
			return "", fault.InField(field+".name", fault.New(fault.Invalid, "%.80q has no character that git keeps in a name",
				p.Name))
		}
		identity = name + " <" + email + ">"
	}
	if p.Date != "" {
		var err error
		if date, err = parseDate(p.Date); err != nil {
			return "", fault.InField(field+".date", err)
		}
	}
	return identity + " " + date, nil
}

// clean removes from a name or an e-mail address what git removes (ident.c, strbuf_addstr_without_crud), except for
// line breaks and NUL, which are errors.
func clean(field, text string) (string, error) {
	if strings.ContainsAny(text, "\x00\r\n") {
		return "", fault.InField(field, fault.New(fault.Invalid, "%.80q contains a line break or a NUL byte", text))
	}
	isCrud := func(r rune) bool { return r <= ' ' || strings.ContainsRune(",:;<>\"\\'", r) }
	return strings.NewReplacer("<", "", ">", "").Replace(strings.TrimFunc(text, isCrud)), nil
}

// lineFormat is a line that passes the checks of git fsck. As in pushes, the offset can have any number of digits.
var lineFormat = regexp.MustCompile(`^[^<>\n\x00]* <[^<>\n\x00]*> (0|[1-9][0-9]*) [+-][0-9]+$`)

// checkLine checks a raw line of an author or committer.
func checkLine(line []byte) error {
	m := lineFormat.FindSubmatch(line)
	if m == nil {
		return fault.New(fault.Invalid, "%.200q is not a line NAME <EMAIL> SECONDS OFFSET", line)
	}
	if _, err := strconv.ParseInt(string(m[1]), 10, 64); err != nil {
		return fault.New(fault.Invalid, "%.80q: the date is out of range", line)
	}
	return nil
}

// maxSeconds is the end of 2099, git's latest date in the calendar, in seconds since the epoch.
const maxSeconds = 4102444799

var dateFormat = regexp.MustCompile(`^([0-9]{1,18}) ([+-])([01][0-9]|2[0-3])([0-5][0-9])$`)

// parseDate returns a date as commits have it: "SECONDS OFFSET".
func parseDate(text string) (string, error) {
	var seconds int64
	offset := 0 // minutes
	if m := dateFormat.FindStringSubmatch(text); m != nil {
		seconds, _ = strconv.ParseInt(m[1], 10, 64)
		hours, _ := strconv.Atoi(m[3])
		offset, _ = strconv.Atoi(m[4])
		offset += 60 * hours
		if m[2] == "-" {
			offset = -offset
		}
	} else {
		date, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return "", fault.New(fault.Invalid,
				"%.80q is neither a date of RFC 3339 (2026-11-29T12:00:00+01:00) nor SECONDS OFFSET (1795950000 +0100)", text)
		}
		_, offset = date.Zone()
		seconds, offset = date.Unix(), offset/60
	}
	if seconds < 0 || seconds > maxSeconds {
		return "", fault.New(fault.Invalid, "%.80q is out of range: git has dates from 1970 to 2099", text)
	}
	sign := '+'
	if offset < 0 {
		sign, offset = '-', -offset
	}
	return fmt.Sprintf("%d %c%02d%02d", seconds, sign, offset/60, offset%60), nil
}
