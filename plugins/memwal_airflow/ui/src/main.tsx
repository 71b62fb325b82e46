import { render } from "preact";

import { App } from "./App";
import { watchTheme } from "./outside";
import "uplot/dist/uPlot.min.css";
import "./style/tokens.css";
import "./style/base.css";
import "./style/fleet.css";
import "./style/table.css";

watchTheme();
const page = document.getElementById("page");
if (page !== null) render(<App />, page);
