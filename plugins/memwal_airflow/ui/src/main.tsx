import { render } from "preact";

import { App } from "./App";
import { reflected, watchTheme } from "./outside";
import "uplot/dist/uPlot.min.css";
import "./style/tokens.css";
import "./style/base.css";
import "./style/fleet.css";
import "./style/table.css";

watchTheme();
const route = reflected();
if (route !== null) history.replaceState(history.state, "", route);
const page = document.getElementById("page");
if (page !== null) render(<App />, page);
