// Package packhorsev1connect contains clients and handlers of the control API's services. Package client creates such
// clients.
package packhorsev1connect
