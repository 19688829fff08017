package inflight

import (
	"strconv"
	"strings"
	"time"
)

// UsageHeader is the header, or the trailer, in which a process tells what git has used for a call. There is none where nothing ran.
const UsageHeader = "Packhorse-Git"

// Header is the usage as UsageHeader has it: seven numbers, times in microseconds; empty if no command has ended.
func (u Usage) Header() string {
	if u.Commands == 0 {
		return ""
	}
	text := make([]byte, 0, 64)
	for i, n := range u.numbers() {
		if i > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendInt(text, n, 10)
	}
	return string(text)
}

func (u Usage) numbers() [7]int64 {
	return [...]int64{
		int64(u.Commands), u.User.Microseconds(), u.System.Microseconds(), u.Queue.Microseconds(), u.MaxRSS, u.In, u.Out,
	}
}

// Told adds what another process says, in UsageHeader, that git has used there for the request. What is no usage is none.
func (r *Request) Told(header string) {
	if r == nil || header == "" {
		return
	}
	fields := strings.Split(header, " ")
	var n [7]int64
	if len(fields) != len(n) {
		return
	}
	for i, field := range fields {
		v, err := strconv.ParseInt(field, 10, 53) // so that sums, and times in nanoseconds, stay numbers
		if err != nil || v < 0 {
			return
		}
		n[i] = v
	}
	r.Used(Usage{
		Commands: int(min(n[0], 1<<31-1)), User: time.Duration(n[1]) * time.Microsecond, System: time.Duration(n[2]) * time.Microsecond,
		Queue: time.Duration(n[3]) * time.Microsecond, MaxRSS: n[4], In: n[5], Out: n[6],
	})
}
