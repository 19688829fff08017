// Package accesslog reads the access logs of Git hosts. These are JSON of Packhorse, GitLab Workhorse and nginx, the
// Common and Combined Log Format of nginx, Apache, Gitea and Forgejo, and the router log of Gitea and Forgejo. The
// format of each line is detected. An Estimator finds what a cache of packs would have saved.
//
// Logs are untrusted: clients choose paths, and lines may have any length and content.
package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// MaxLine is the maximum length of a line in bytes.
const MaxLine = 1 << 20

// Entry is a logged request.
type Entry struct {
	Time           time.Time // UTC; zero: unknown
	Method, Target string    // empty for requests without a path, as over SSH
	Status         int       // 0: unknown
	Bytes          int64     // of the response; negative: unknown
	Duration       string    // as in the log; empty: unknown. See ParseDuration
	Unit           time.Duration

	// Fields are further values of the line: the members of a JSON object, or NAME=VALUE behind the Common Log Format.
	Fields map[string]string
}

// The errors of Parse and ParseDuration.
var (
	// ErrOther marks a line of a log that is about something else than a request.
	ErrOther = errors.New("a line about something else")

	errFormat   = errors.New("neither JSON nor Common Log Format")
	errJSON     = errors.New("no JSON object")
	errTime     = errors.New("invalid time")
	errStatus   = errors.New("no status")
	errDuration = errors.New("no duration")
	errRange    = errors.New("a negative duration, or one of more than 30 days")
)

// Lines calls a function for each line of a log, without the line's end. The log may be compressed with gzip. A line
// that is longer than MaxLine is cut to MaxLine+1 bytes. The slice is valid until the next call.
func Lines(ctx context.Context, log io.Reader, each func(line []byte)) error {
	const buffer = 256 << 10
	text := bufio.NewReaderSize(log, buffer)
	if magic, _ := text.Peek(2); string(magic) == "\x1f\x8b" {
		unzipped, err := gzip.NewReader(text)
		if err != nil {
			return err
		}
		text = bufio.NewReaderSize(unzipped, buffer)
	}
	var long []byte // the beginning of a line that is longer than the buffer
	for n := 0; ; n++ {
		part, err := text.ReadSlice('\n')
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && !errors.Is(err, io.EOF) {
			return err
		}
		if errors.Is(err, bufio.ErrBufferFull) || len(long) > 0 {
			long = append(long, part[:min(len(part), MaxLine+1-len(long))]...)
			part = long
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if len(part) > 0 {
			each(bytes.TrimRight(part, "\r\n"))
		}
		if long = long[:0]; err != nil {
			return nil
		}
	}
}

// Parse parses a line.
func Parse(line []byte) (Entry, error) {
	line = bytes.TrimSpace(line)
	switch {
	case len(line) > 0 && line[0] == '{':
		return parseJSON(line)
	case bytes.Contains(line, []byte("router: completed ")):
		return parseRouter(line)
	}
	return parseCommon(line)
}

var (
	// HOST IDENT USER [TIME] "REQUEST" STATUS BYTES, and further fields.
	common = regexp.MustCompile(`\[([^\]"]+)\] "((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-)(?:\s+(.*))?$`)
	// A further field: NAME=VALUE, a quoted one, or another one.
	further = regexp.MustCompile(`(?:(\w+)=)?(?:"((?:[^"\\]|\\.)*)"|(\S+))`)
	// TIME ... router: completed METHOD TARGET for CLIENT, STATUS TEXT in DURATION @ FUNCTION
	router = regexp.MustCompile(
		`(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d).*router: completed ([A-Z]+) (\S+) for [^,]*, (\d{3}) (?:.* in (\S+) @)?`)
	colours = regexp.MustCompile("\x1b\\[[0-9;]*m")
)

// parseCommon parses the Common or Combined Log Format. Its duration is a field rt, request_time or duration, else the
// last number without a name. The referrer and the agent are not the duration.
func parseCommon(line []byte) (Entry, error) {
	m := common.FindSubmatch(line)
	if m == nil {
		return Entry{}, errFormat
	}
	e := Entry{Bytes: parseSize(string(m[4])), Fields: map[string]string{}}
	e.Method, e.Target = requestLine(string(m[2]))
	e.Status, _ = strconv.Atoi(string(m[3])) // three digits
	quotes := 0                              // the first two are the referrer and the agent
	for _, f := range further.FindAllSubmatch(m[5], -1) {
		name, value := string(f[1]), string(f[2])+string(f[3])
		if name != "" {
			e.Fields[name] = value
			continue
		}
		if f[2] != nil {
			quotes++
		}
		switch isNumber := value != "" && value[0] >= '0' && value[0] <= '9'; {
		case isNumber && (f[3] != nil || quotes > 2):
			e.Duration = value
		case f[2] != nil && quotes <= 2:
			e.Duration = ""
		}
	}
	for _, name := range []string{"duration", "request_time", "rt"} {
		if value := e.Fields[name]; value != "" {
			e.Duration = value
		}
	}
	if e.Unit = time.Microsecond; strings.Contains(e.Duration, ".") { // of Apache's %D, and of nginx's $request_time
		e.Unit = time.Second
	}
	var ok bool
	if e.Time, ok = parseTime(string(m[1])); !ok {
		return e, errTime
	}
	return e, nil
}

func parseRouter(line []byte) (Entry, error) {
	m := router.FindSubmatch(colours.ReplaceAll(line, nil))
	if m == nil {
		return Entry{}, ErrOther
	}
	at, ok := parseTime(string(m[1]))
	if !ok {
		return Entry{}, errTime
	}
	status, _ := strconv.Atoi(string(m[4])) // three digits
	return Entry{Time: at, Method: string(m[2]), Target: string(m[3]), Status: status, Bytes: -1, Duration: string(m[5]),
		Unit: time.Second}, nil
}

// The keys of JSON logs, the preferred ones first. "uri", "duration_ms" and "written_bytes" are those of GitLab
// Workhorse, "ms" that of Packhorse. Logs of nginx mostly have the names of its variables.
var (
	timeKeys   = []string{"time", "time_iso8601", "time_local", "timestamp", "@timestamp", "msec", "ts"}
	methodKeys = []string{"method", "request_method"}
	targetKeys = []string{"uri", "request_uri", "url", "path"}
	statusKeys = []string{"status", "status_code"}
	sizeKeys   = []string{"written_bytes", "body_bytes_sent", "bytes_sent", "bytes", "size"}
	tookKeys   = []struct {
		name string
		unit time.Duration
	}{{"ms", time.Millisecond}, {"duration_ms", time.Millisecond}, {"request_time", time.Second},
		{"upstream_response_time", time.Second}}
)

func parseJSON(line []byte) (Entry, error) {
	var members map[string]any
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	if decoder.Decode(&members) != nil || decoder.More() {
		return Entry{}, errJSON
	}
	fields := make(map[string]string, len(members))
	for name, member := range members {
		switch value := member.(type) {
		case string:
			fields[name] = value
		case json.Number:
			fields[name] = value.String()
		case bool:
			fields[name] = strconv.FormatBool(value)
		}
	}
	message := fields["msg"]
	if message != "" && message != "request" && message != "access" {
		return Entry{}, ErrOther
	}
	first := func(keys []string) string {
		for _, key := range keys {
			if value := fields[key]; value != "" {
				return value
			}
		}
		return ""
	}
	e := Entry{Method: first(methodKeys), Target: first(targetKeys), Bytes: parseSize(first(sizeKeys)), Fields: fields}
	if (e.Method == "" || e.Target == "") && message == "" { // in Packhorse's log "request" is an ID
		e.Method, e.Target = requestLine(fields["request"])
	}
	for _, key := range tookKeys {
		if value := fields[key.name]; value != "" {
			e.Duration, e.Unit = value, key.unit
			break
		}
	}
	var ok bool
	if at := first(timeKeys); at != "" {
		if e.Time, ok = parseTime(at); !ok {
			return e, errTime
		}
	}
	if text := first(statusKeys); text != "" {
		var err error
		if e.Status, err = strconv.Atoi(text); err != nil {
			return e, errStatus
		}
	} else if fields["result"] == "" {
		return e, errStatus
	}
	return e, nil
}

// requestLine returns the method and the target of "GET /path HTTP/1.1".
func requestLine(line string) (method, target string) {
	method, rest, ok := strings.Cut(line, " ")
	if !ok {
		return "", ""
	}
	target, _, _ = strings.Cut(rest, " ")
	return method, target
}

// parseTime parses a time of a log. Without a zone it is UTC: only differences matter.
func parseTime(text string) (time.Time, bool) {
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		if !(seconds > 0 && seconds < 1e10) {
			return time.Time{}, false
		}
		whole, part := math.Modf(seconds)
		return time.Unix(int64(whole), int64(part*1e9)).UTC(), true
	}
	for _, layout := range []string{time.RFC3339, "02/Jan/2006:15:04:05 -0700", "2006/01/02 15:04:05"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC(), at.Year() >= 1970 && at.Year() < 2200
		}
	}
	return time.Time{}, false
}

// maxSize is the maximum of a response in bytes. Larger numbers are not believed.
const maxSize = 1 << 42

// parseSize returns -1 if the text is not a size.
func parseSize(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > maxSize {
		return -1
	}
	return n
}

const maxDuration = 30 * 24 * time.Hour

// ParseDuration parses a number of a unit, or a number with its own unit, as 12ms. The times of several upstream
// servers of nginx, as "0.010, 0.020 : -", are added up.
func ParseDuration(text string, unit time.Duration) (time.Duration, error) {
	var sum time.Duration
	err := errDuration
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ':' || r == ' ' }) {
		if part == "-" {
			continue
		}
		for _, u := range []struct {
			text string
			unit time.Duration
		}{{"ms", time.Millisecond}, {"us", time.Microsecond}, {"µs", time.Microsecond}, {"s", time.Second}} {
			if rest, ok := strings.CutSuffix(part, u.text); ok {
				part, unit = rest, u.unit
				break
			}
		}
		number, bad := strconv.ParseFloat(part, 64)
		if bad != nil {
			return 0, errDuration
		}
		took := number * float64(unit)
		if !(took >= 0 && took+float64(sum) <= float64(maxDuration)) {
			return 0, errRange
		}
		sum, err = sum+time.Duration(math.Round(took)), nil
	}
	return sum, err
}
