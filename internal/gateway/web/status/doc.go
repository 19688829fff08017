// Package status serves a page for administrators: what the server does now and did in the last hours.
//
// The numbers are those of the process's metrics and of "packhorse top". The page counts nothing itself: it keeps
// samples of some metrics in memory, and draws them as SVG. Its tables ask the parts of the server when it is opened.
package status
