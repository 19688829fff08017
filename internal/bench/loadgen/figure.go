package loadgen

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Figure is a measured value that has a goal.
type Figure struct {
	Part    string  `json:"part"`
	What    string  `json:"what"`
	Goal    string  `json:"goal"`
	Value   float64 `json:"value"`
	Got     string  `json:"got"` // the value with its unit, and what it is made of
	Reached bool    `json:"reached"`
}

// PrintFigures writes a line for each figure.
func PrintFigures(out io.Writer, figures []Figure) {
	for _, f := range figures {
		verdict := "reached"
		if !f.Reached {
			verdict = "MISSED"
		}
		fmt.Fprintf(out, "%-11s %-62s %-8s %s\n", f.Part, f.What+": "+f.Goal, verdict, f.Got)
	}
}

// Median returns the middle one of the values, which it sorts. There has to be one.
func Median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// ReadMetric returns the sum of the samples of a metric that have the label, given as name="value". ops is the URL of
// the server's private listener.
func ReadMetric(ctx context.Context, ops, name, label string) (sum float64, err error) {
	response, err := GetOps(ctx, ops+"/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		rest, isMetric := strings.CutPrefix(lines.Text(), name)
		if !isMetric || strings.IndexAny(rest, "{ ") != 0 || !strings.Contains(rest, label) {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum += v
	}
	return sum, lines.Err()
}
